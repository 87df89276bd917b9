"""`ehbalance jobs`: the files that it names are there, and copies of them are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_ehbalance import shipped
from tests.cli.command import Command

FILES = ("jobs/stream_to_delta.py", "conf/stream_to_delta.conf", "conf/log4j2.properties")


def named(out: str) -> list[Path]:
    return [Path(line.split(maxsplit=1)[1]) for line in out.splitlines()[:3]]


def test_the_files_that_are_named_exist(ehbalance: Command) -> None:
    printed = ehbalance("jobs").out
    assert [path.is_file() for path in named(printed)] == [True] * 3
    assert printed.splitlines()[-1].endswith(
        "spark-submit --properties-file conf/stream_to_delta.conf jobs/stream_to_delta.py"
    )


@pytest.mark.parametrize(
    ("job", "variables"),
    [
        ("batch_to_delta", "EHBALANCE_CONNECTION_STRING=… "),
        ("copy_hub", "EHBALANCE_CONNECTION_STRING=… EHBALANCE_SINK_CONNECTION_STRING=… "),
        ("maintain_leases", ""),
    ],
)
def test_the_command_has_the_variables_that_the_job_reads(ehbalance: Command, job: str, variables: str) -> None:
    assert ehbalance("jobs", job).out.splitlines()[-1].startswith(f"{variables}spark-submit ")


def test_copies_run_as_the_originals_do(ehbalance: Command, tmp_path: Path) -> None:
    originals = named(ehbalance("jobs").out)
    copies = named(ehbalance("jobs", "--copy-to", tmp_path / "new").out)
    assert copies == [tmp_path / "new" / file for file in FILES]
    assert [copy.read_bytes() for copy in copies] == [original.read_bytes() for original in originals]


def test_what_somebody_has_changed_is_not_overwritten(ehbalance: Command, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / FILES[1]).write_text("mine")
    error = ehbalance.fails(1, "jobs", "--copy-to", tmp_path)
    assert error == f"Error: {tmp_path / FILES[1]} is there already: choose another folder, or remove it\n"
    assert not (tmp_path / "jobs").exists()


def test_what_jobs_share_may_be_there(ehbalance: Command, tmp_path: Path) -> None:
    for _ in range(2):
        ehbalance.succeeds("jobs", "stream_to_delta", "--copy-to", tmp_path)


def test_a_job_that_there_is_not_is_named_with_those_that_there_are(ehbalance: Command) -> None:
    error = ehbalance.fails(1, "jobs", "stream_to_delt")
    assert error.startswith("Error: there is no job 'stream_to_delt': there are ")
    assert error.endswith(" (did you mean stream_to_delta?)\n")


def test_jobs_of_the_shipped_settings_do_not_take_events_from_each_other() -> None:
    confs = (shipped.folder() / "conf").glob("*.conf")
    tables = [each for conf in confs for each in re.findall(r"^spark\S+leaseTable +(\S+)", conf.read_text(), re.M)]
    assert len({*tables}) == len(tables) == 3
    assert {str(Path(table).parent) for table in tables} == {"data/leases"}, "the folder that maintain_leases looks at"
