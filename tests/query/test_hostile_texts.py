"""Untrusted names and texts are escaped before they reach a log handler or an error: they could forge log lines or
control the terminal that displays them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_ehbalance
from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.group.changes import Join, Steal
from spark_ehbalance.group.model import Author
from spark_ehbalance.query.options import stream_options
from spark_ehbalance.text import logger, plain
from tests.query.queries import Group
from tests.waiting import wait_until

HOSTILE = "\x1b]0;owned\x07\x1b[2K\u202e\u2066gnp.exe\u200b\x00\x9b31m\r\u2028\nERROR forged"


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The output of two handlers of an application, one on the root logger and one on the package's logger."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler, loggers = Handler(), [logging.getLogger(), logging.getLogger("spark_ehbalance")]
    for logger_ in loggers:
        logger_.addHandler(handler)
    loggers[1].setLevel(logging.DEBUG)
    yield lines
    loggers[1].setLevel(logging.NOTSET)
    for logger_ in loggers:
        logger_.removeHandler(handler)


def test_names_in_the_lease_table_are_escaped(group: Group, logged: list[str]) -> None:
    """A forged member steals a partition while a query reads."""
    query, ann = group.query("b"), Author(f"ann{HOSTILE}", f"token{HOSTILE}")
    wait_until(lambda: len(query.owned()) == 8, "the query has all partitions")
    group.order(
        Join(by=ann, at_ms=0, host=f"host{HOSTILE}", strategy=f"strategy{HOSTILE}", lease_duration_ms=60_000),
        Steal(by=ann, at_ms=0, partition="0", epoch=group.leases()["0"].epoch),
    )
    wait_until(lambda: any("no longer owned. partition=0 owner=ann" in line for line in logged), "the loss is logged")
    assert any(plain(ann.id) in line for line in logged)
    assert [line for line in logged if not line.isprintable()] == []


@pytest.mark.parametrize("option", ["consumerGroup", "eventHubName", "ownerId", "leaseTable", "credential", HOSTILE])
def test_option_names_and_values_are_escaped(option: str) -> None:
    hub = {"fullyQualifiedNamespace": "ns.servicebus.windows.net", "eventHubName": "hub", "leaseTable": "/leases"}
    with pytest.raises(OptionError) as raised:
        stream_options(hub | {option: f"a{HOSTILE}"})
    assert str(raised.value).isprintable()


def test_error_is_one_line_wherever_it_is_displayed(logged: list[str]) -> None:
    error = EhBalanceError("EHB_COMMAND_REJECTED", reason=f"owner{HOSTILE}")
    error.__cause__ = OSError(f"file{HOSTILE}")
    assert plain(f"owner{HOSTILE}") in str(error)
    logger("spark_ehbalance.test").error("failed for %s", f"ann{HOSTILE}", exc_info=error)
    assert len(logged) == 2
    for text in logged:
        assert text.count("forged") == text.count("\\nERROR forged") + 1 == 3  # a cause's text keeps its line breaks
        assert text.replace("\n", "").isprintable()


def test_all_loggers_of_the_package_are_created_by_the_same_function() -> None:
    """Except for the emulator's, which is a test tool."""
    folder = Path(spark_ehbalance.__file__).parent
    files = {file for file in folder.rglob("*.py") if folder / "emulator" not in file.parents}
    assert [file for file in files if "getLogger(__name__)" in file.read_text(encoding="utf-8")] == []
