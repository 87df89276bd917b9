"""`ehbalance metrics`. `tests/metrics/test_scrape.py` has a real Prometheus scrape it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from spark_ehbalance.lease_table.delta import DeltaStore
from spark_ehbalance.ops.metrics import Tables, WatchedTable
from tests.ops.command import Command
from tests.ops.groups import Group


def test_a_table_that_cannot_be_read_ends_it_before_anything_is_served(
    ehbalance: Command, used: Group, tmp_path: Path
) -> None:
    outcome = ehbalance("metrics", used.table, tmp_path / "nowhere")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("Error: there is no lease table at ")
    outcome = ehbalance("metrics", "https://account.blob.core.windows.net/container")
    assert outcome.code == 2
    assert "allowed is a lease table in Delta" in outcome.err


def test_a_port_that_is_taken_ends_it(ehbalance: Command, used: Group) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        outcome = ehbalance("metrics", used.table, "--port", other.getsockname()[1])
    assert outcome.code == 1
    assert outcome.err.startswith("Error: metrics cannot be served at 127.0.0.1:")


def test_of_several_tables_one_may_go_away_and_come_back(
    used: Group, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Group(used.ehbalance, tmp_path / "other", used.connection)
    other("init", "--consumer-group", "other")
    with DeltaStore(str(used.table)) as first, DeltaStore(str(other.table)) as second:
        tables = Tables([WatchedTable(first), WatchedTable(second)])

        def available() -> list[tuple[str, float]]:
            found = [each for each in tables.samples() if each.metric.name == "ehbalance_store_available"]
            return [(each.labels[0].rpartition("/")[2], each.value) for each in found]

        assert available() == [("$default", 1), ("other", 1)]
        away = used.table.rename(tmp_path / "away")
        capsys.readouterr()
        assert available() == available() == [("$default", 0), ("other", 1)]
        assert capsys.readouterr().err.count("Warning: ") == 1
        groups = {each.labels[0] for each in tables.samples() if each.metric.name == "ehbalance_partitions"}
        assert len(groups) == 1
        away.rename(used.table)
        assert available() == [("$default", 1), ("other", 1)]
