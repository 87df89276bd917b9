"""Every block of code in the documentation is run by a test, checked, or says why it is not."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.docs import shell, snippets
from tests.docs.blocks import PAGES, ROOT, Block, all_blocks, blocks, inline_code

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SHELL = {"", "sh", "bash", "shell", "console"}  # without a language a block has commands
_ALL = all_blocks()


def problems(block: Block) -> list[str]:
    """Why a block is neither run nor right, as far as that can be seen without running it."""
    if block.mark == "not run":
        return [] if len(block.detail) > 5 else ["say why it is not run"]
    if block.mark == "run by":
        return _test_problems(block.detail)
    if block.mark == "run" or block.language == "text":
        return []
    try:
        if block.language in _SHELL:
            return shell.problems(block.text)
        if block.language == "python":
            return snippets.problems(block.text)
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            json.loads(block.text)
        else:
            return [f"{block.language} is neither run nor checked: mark the block"]
    except ValueError as error:
        return [str(error)]
    return []


def _test_problems(detail: str) -> list[str]:
    file, _, test = detail.partition("::")
    path = ROOT / file
    if not path.is_file() or f"def {test}(" not in path.read_text(encoding="utf-8"):
        return [f"there is no test {detail}"]
    return []


@pytest.mark.parametrize("block", _ALL, ids=lambda block: block.name)
def test_a_block_is_run_or_right_or_marked(block: Block) -> None:
    assert problems(block) == [], block.name


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_are_right(page: str) -> None:
    """`ehbalance …`, `make …` and names of the package."""
    wrong: list[str] = []
    for code in inline_code(PAGES[page].read_text(encoding="utf-8")):
        if re.match(r"ehbalance [a-z]", code):
            # A message may begin so too: what is like no command is none.
            wrong += shell.ehbalance([*code.split()[1:], "…"]) if shell.like_command(code.split()[1]) else []
        elif re.match(r"make [a-z]", code):
            wrong += shell.problems(code)
        elif found := re.match(r"spark_ehbalance(?:\.\w+)+(?=$|\()", code):
            wrong += filter(None, [snippets.name_problem(found[0])])
    assert not wrong


def block(language: str, text: str, mark: str = "") -> Block:
    comment = f"<!-- {mark} -->\n" if mark else ""
    (found,) = blocks("page.md", f"Text.\n\n{comment}```{language}\n{text}\n```\n")
    return found


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("", "ehbalance status leases/flights --watch  # a comment"),
        ("sh", "ehbalance status LEASE_TABLE [--watch] [--json]"),
        ("sh", "ehbalance import-checkpoints LEASE_TABLE --from-blobs ADDRESS | --from-spark DIR …"),
        ("console", "$ ehbalance status leases/flights \\\n    --json\noutput --of it"),
        ("sh", 'make bench ARGS="--short" && make test'),
        ("sh", 'pip install "spark-ehbalance[blob,report]" pyspark==4.2.0'),
        (
            "sh",
            "EHBALANCE_CONNECTION_STRING=x pyspark --conf spark.ehbalance.job.source.strategy=race",
        ),
        ("sh", "python scripts/write_tables.py"),
        ("python", "import spark_ehbalance.delta\nspark_ehbalance.delta.once('t')"),
        ("python", ".option('storageSecrets.account_key', 'env:KEY').option('prefetch', 100)"),
        ("python", "df.write.format('delta').option('mergeSchema', True)"),
        ("toml", "a = 1"),
        ("text", "anything"),
    ],
)
def test_what_is_right_is_accepted(language: str, text: str) -> None:
    assert problems(block(language, text)) == []


@pytest.mark.parametrize(
    ("language", "text", "problem"),
    [
        ("", "ehbalance statsu leases/flights", "ehbalance has no command statsu"),
        ("sh", "ehbalance status leases/flights --wacth", "ehbalance status has no --wacth"),
        ("sh", "ehbalance status LEASE_TABLE [--wacth] [--json]", "ehbalance status has no --wacth"),
        ("sh", "ehbalance transfer leases/flights 3 --to", "requires an argument"),
        ("sh", "ehbalance emulator --port many", "a valid integer"),
        ("console", "$ ehbalance init\noutput", "Missing parameter: lease_table"),
        ("sh", "ehbalance status leases && ehbalance nothing", "no command nothing"),
        ("sh", "make tset", "make has no target tset"),
        ("sh", "make test ARG=x", "make uses no ARG"),
        ("sh", "pip install spark-ehbalance[bolb]", "there is no extra bolb"),
        ("sh", "pip install spark-ehbalnace", "no package of the project"),
        ("sh", "spark-submit --property-file conf/stream_to_delta.conf job.py", "has no --property-file"),
        ("sh", "spark-submit jobs/missing.py", "jobs/missing.py does not exist"),
        ("sh", "spark-submit --conf spark.ehbalance.job.source.stratgy=race job.py", "no option stratgy"),
        ("sh", "spark-submit --conf spark.ehbalance.job.tabel=t job.py", "tabel is not in conf/stream_to_delta.conf"),
        ("sh", "export EHBALANCE_CONECTION_STRING=x", "nothing reads EHBALANCE_CONECTION_STRING"),
        ("sh", "python scripts/missing.py", "neither run nor checked"),
        ("sh", "kubectl apply -f job.yaml", "kubectl is neither run nor checked"),
        ("python", "for", "is no Python"),
        ("python", "from spark_ehbalance.delta import twice", "import fails"),
        ("python", "spark_ehbalance.dleta.once('t')", "there is no spark_ehbalance.dleta"),
        ("python", "spark.readStream.format('ehbalance').option('stratgy', 'race')", "there is no option stratgy"),
        ("python", "spark.readStream.format('ehbalance').options(prefetch=0)", "prefetch=0 is wrong"),
        ("python", ".option('prefetched', 100)", "there is no option prefetched"),
        ("toml", "a = ", "Invalid value"),
        ("json", "{a: 1}", "Expecting property name"),
        ("sql", "SELECT 1", "sql is neither run nor checked"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_found(language: str, text: str, problem: str) -> None:
    assert problem in " ".join(problems(block(language, text)))


def test_marks() -> None:
    marked = block("sh", "kubectl apply", "not run: no Kubernetes here")
    assert (marked.line, marked.mark, marked.detail, problems(marked)) == (5, "not run", "no Kubernetes here", [])
    assert problems(block("sh", "kubectl apply", "not run:"))
    assert problems(block("sh", "kubectl apply", "an ordinary comment"))
    assert not problems(block("sh", "kubectl apply", "run by: tests/docs/test_blocks.py::test_marks"))
    assert problems(block("sh", "kubectl apply", "run by: tests/docs/test_blocks.py::test_nothing"))
