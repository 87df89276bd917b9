"""Checks the commands of the documentation against the real ones: names, options, files."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from typer.main import get_command

from jobs.stream_to_delta import SOURCE
from spark_ehbalance.cli.main import app
from spark_ehbalance.source.options import BATCH, STREAM, option_names
from tests.docs.blocks import ROOT

_BETWEEN = {"&&", "||", "|", ";", "&"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_FLAG = re.compile(r"--?[a-z][\w-]*")
_PIP_OPTIONS = {"--upgrade", "-U", "--no-deps", "--target", "-t", "-e", "-c", "-r"}


def problems(text: str) -> list[str]:
    """What is wrong in a block of commands, or cannot be checked."""
    return [problem for command in commands(text) for problem in command_problems(command)]


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command. Where lines begin with a prompt, the others are output."""
    lines = text.replace("\\\n", " ").splitlines()
    prompted = [line.lstrip()[2:] for line in lines if line.lstrip().startswith("$ ")]
    for line in prompted or lines:
        words = shlex.split(line, comments=True)
        if words[:1] == ["ehbalance"] and _is_synopsis(words):
            yield words
            continue
        while words:
            end = next((place for place, word in enumerate(words) if word in _BETWEEN), len(words))
            if words[:end]:
                yield words[:end]
            words = words[end + 1 :]


def command_problems(words: Sequence[str]) -> list[str]:
    assigned = []
    while words and _ASSIGNMENT.match(words[0]):
        assigned.append(words[0])
        words = words[1:]
    wrong = _variables(assigned)
    if words:
        check = _CHECKS.get(words[0])
        wrong += check(words[1:]) if check else [f"{words[0]} is neither run nor checked: mark the block"]
    return wrong


def ehbalance(words: Sequence[str]) -> list[str]:
    """Parses as the command itself does. Of a synopsis ([--watch], …) only the names are checked."""
    group = get_command(app)
    if words[0].startswith("-"):
        known = {option for parameter in group.params for option in parameter.opts} | {"--help"}
        return [f"ehbalance has no {word}" for word in words if word not in known]
    name, *given = words
    command = group.commands.get(name)
    if command is None:
        return [f"ehbalance has no command {name}"]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    flags = {flag for word in given for flag in re.split(r"[\[\]|]", word) if flag.startswith("-")}
    wrong = [f"ehbalance {name} has no {flag}" for flag in sorted(flags) if flag.partition("=")[0] not in known]
    if wrong or "--help" in given or _is_synopsis(words):
        return wrong
    try:
        command.make_context(name, list(given))
    except Exception as error:  # click's own, which typer does not export
        return [f"ehbalance {name}: {error}"]
    return []


def like_command(name: str) -> bool:
    """Whether `name` is one of `ehbalance`'s commands, or one with a mistake in it."""
    return bool(difflib.get_close_matches(name, get_command(app).commands))


def _is_synopsis(words: Sequence[str]) -> bool:
    return any(word in {"…", "..."} or re.search(r"^\[|\]$|\w\|-", word) for word in words)


def _make(words: Sequence[str]) -> list[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    names = [word.partition("=")[0] for word in words if _ASSIGNMENT.match(word)]
    return [
        *(f"make has no target {word}" for word in words if not _ASSIGNMENT.match(word) and word not in targets),
        *(f"make uses no {name}" for name in names if not re.search(rf"\$\({name}\b", makefile) and name != "PYTHON"),
    ]


def _pip(words: Sequence[str]) -> list[str]:
    if words[:1] != ["install"]:
        return [f"pip {' '.join(words[:1])} is neither run nor checked: mark the block"]
    known = {line.partition("==")[0] for line in _lines("constraints.txt") if "==" in line}
    extras = set(re.findall(r"^(\w+) = \[", _section("pyproject.toml", "project.optional-dependencies"), re.MULTILINE))
    wrong, taken = [], False
    for word in words[1:]:
        requirement = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?(?:$|[=<>~!;])", word)
        if taken or word.startswith("-"):
            taken = word in {"--target", "-t", "-c", "-r"}
            wrong += [] if taken or not word.startswith("-") or word in _PIP_OPTIONS else [f"pip has no {word} here"]
        elif requirement is None or requirement[1].lower() not in {"spark-ehbalance", *known}:
            wrong.append(f"pip install {word}: this is no package of the project or of constraints.txt")
        elif requirement[1].lower() == "spark-ehbalance":
            wrong += [
                f"there is no extra {name}" for name in (requirement[2] or "").split(",") if {name} - extras - {""}
            ]
    return wrong


def _spark(words: Sequence[str]) -> list[str]:
    wrong = [f"spark-submit has no {word}" for word in words if _FLAG.fullmatch(word) and word not in spark_options()]
    for word in words:
        if word.startswith(("conf/", "jobs/", "scripts/")) and not (ROOT / word).is_file():
            wrong.append(f"{word} does not exist")
        if found := re.match(r"spark\.ehbalance\.([\w.]+)=", word):
            wrong += _setting(f"spark.ehbalance.{found[1]}")
    return wrong


@cache
def spark_options() -> frozenset[str]:
    """Those that spark-submit's help names."""
    script = Path(sys.executable).parent / "spark-submit"
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment.pop("SPARK_HOME", None)
    shown = subprocess.run(
        [script, "--help"], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    found = frozenset(re.findall(r"(?<!\S)(--?[a-z][\w-]*)", shown.stdout + shown.stderr))
    assert {"--properties-file", "--py-files", "--conf"} <= found
    return found | {"-c"}


def _setting(name: str) -> list[str]:
    if name.startswith(SOURCE):
        option = name.removeprefix(SOURCE)
        return [] if is_option(option) else [f"{name}: there is no option {option}"]
    known = "\n".join(_lines("conf/stream_to_delta.conf"))
    return [] if re.search(rf"{re.escape(name)}\s", known) else [f"{name} is not in conf/stream_to_delta.conf"]


def is_option(name: str) -> bool:
    names = {each.lower() for only in (STREAM, BATCH) for each in option_names(only)}
    return name.lower() in names or f"{name.lower().partition('.')[0]}.*" in names


def _python(words: Sequence[str]) -> list[str]:
    if words[:1] == ["-m"] and len(words) > 1:
        return [] if _exists(words[1]) else [f"there is no module {words[1]}"]
    if words and words[0].endswith(".py") and (ROOT / words[0]).is_file():
        return []
    return [f"python {' '.join(words)} is neither run nor checked: mark the block"]


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _variables(assignments: Sequence[str]) -> list[str]:
    names = [word.partition("=")[0] for word in assignments]
    return [f"nothing reads {name}" for name in names if name.startswith("EHBALANCE_") and name not in _source()]


@cache
def _source() -> str:
    files = [path for folder in ("spark_ehbalance", "jobs", "tests/service") for path in (ROOT / folder).rglob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def _lines(name: str) -> list[str]:
    return (ROOT / name).read_text(encoding="utf-8").splitlines()


def _section(name: str, section: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8").partition(f"[{section}]\n")[2].partition("\n[")[0]


_CHECKS: dict[str, Callable[[Sequence[str]], list[str]]] = {
    "ehbalance": ehbalance,
    "make": _make,
    "pip": _pip,
    "python": _python,
    "spark-submit": _spark,
    "pyspark": _spark,
    "export": _variables,
}
