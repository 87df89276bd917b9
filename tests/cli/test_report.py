"""`ehbalance report`: the picture of a group's history."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.cli.report import history_picture
from spark_ehbalance.leases.history import OwnershipChange, ownership_changes
from spark_ehbalance.leases.model import Author
from spark_ehbalance.leases.timeline import Mark, Segment, moves_of, segments_of, split
from spark_ehbalance.leases.transitions import AddPartitions, Claim, HandOver, Join, Release, RequestHandover
from spark_ehbalance.stores.base import commit
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.position import Position
from tests.cli.command import Command
from tests.stores.store_conformance import ANN, BOB, GROUP

T0 = 1_700_000_000_000


def row(at_s: float, partition: Any, event: str, before: Any, owner: Any, epoch: Any, **more: Any) -> OwnershipChange:
    """A row of a history; operators' rows may have no partition and no epoch."""
    who = more.pop("by", owner or before or "operator")
    return OwnershipChange(T0 + round(at_s * 1000), partition, event, before, owner, epoch, None, by=who, **more)


@pytest.fixture
def recorded(table: Path) -> Path:
    """A group of two members with every kind of history row, operators' orders included."""
    commits = [
        [Join(by=ANN, at_ms=T0), AddPartitions(by=ANN, at_ms=T0, partitions=("0", "1"), checkpoint=Position(-1))],
        [Claim(by=ANN, at_ms=T0 + 1000, partition=p, epoch=0) for p in "01"],
        [
            Join(by=BOB, at_ms=T0 + 5000),
            RequestHandover(by=BOB, at_ms=T0 + 5000, partition="1", epoch=1, to="bob", timeout_ms=1000),
        ],
        [HandOver(by=ANN, at_ms=T0 + 6000, partition="1", epoch=1)],
        [Release(by=ANN, at_ms=T0 + 9000, partition="0", epoch=1)],
    ]
    with DeltaStore(str(table)) as store:
        store.create(GROUP)
        for each in commits:
            outcome = commit(store, store.read(), each)
            assert not outcome.refused
            if changes := ownership_changes(outcome):
                store.record(changes)
        operator = Author("operator:me@here", "").id
        store.record(
            [
                row(7, "0", "PinTo", "ann", "ann", 1, by=operator, why="it <b>knows</b> it"),
                row(8, None, "Drain", "ann", "ann", None, by=operator),
                row(8.5, "1", "Seek", "bob", "bob", 2, by=operator),
                row(8.7, "0", "Transfer", "ann", "ann", 1, by=operator),
                row(8.8, "1", "Unpin", "bob", "bob", 2, by=operator),
            ]
        )
    return table


def test_a_history_is_drawn_with_operators_orders_as_marks(ehbalance: Command, recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    outcome = ehbalance("report", recorded, "--out", path)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", f"Drawn into {path}.\n")
    page = path.read_text(encoding="utf-8")
    assert f"<title>{GROUP}</title>" in page
    assert "<script src=" not in page
    assert "2 partitions, 3 moves from 2023-11-14T22:13:21.000" in page
    for text in ("PinTo 0 by operator:me@here", "Drain by operator:me@here", "Seek 1", "Transfer 0", "Unpin 1"):
        assert text in page
    assert "<b>knows</b>" not in page, "reasons are text"


def test_a_report_replaces_only_a_file_that_is_named(
    ehbalance: Command, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "report.html"
    file.write_text("my own report")
    assert "report.html is there already: --out report.html replaces it" in ehbalance.fails(2, "report", recorded)
    assert file.read_text() == "my own report"
    assert ehbalance("report", recorded, "--out", "report.html").code == 0
    assert "<title>" in file.read_text()


@pytest.mark.parametrize("command", ["history", "report", "status"])
def test_a_file_in_the_place_of_a_lease_table_is_named(ehbalance: Command, command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "it is a file, and a lease table is a folder" in ehbalance.fails(1, command, tmp_path / "file")


def test_the_demo_looks_for_the_pictures_folder_before_it_starts(ehbalance: Command, tmp_path: Path) -> None:
    for wrong in (tmp_path / "nope" / "x.html", tmp_path):
        message = ehbalance.fails(2, "demo", "--out", wrong)
        assert f"--out {wrong}: allowed is a file in a folder that is there and can be written" in message


def drawn(page: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The traces and the layout of a page's figure."""
    decode = json.JSONDecoder().raw_decode
    begin = page.index("[", page.index("Plotly.newPlot("))
    traces, end = decode(page, begin)
    return traces, decode(page, page.index("{", end))[0]


def seconds(date: str) -> float:
    """Since `T0`."""
    return datetime.fromisoformat(date).replace(tzinfo=timezone.utc).timestamp() - T0 / 1000


def test_all_time_axes_have_dates_and_bars_begin_at_the_right_time(
    ehbalance: Command, recorded: Path, tmp_path: Path
) -> None:
    path = tmp_path / "out.html"
    ehbalance("report", recorded, "--out", path)
    traces, layout = drawn(path.read_text(encoding="utf-8"))
    axes = {name: axis for name, axis in layout.items() if name.startswith("xaxis")}
    assert {axis["type"] for axis in axes.values()} == {"date"}
    assert len(axes) == 3
    for axis in axes.values():
        assert [seconds(at) for at in axis["range"]] == [1.0, 10.0], "to a second after the last entry"
    assert axes["xaxis3"]["title"]["text"] == "UTC"
    lanes = [trace for trace in traces if trace.get("orientation") == "h"]
    bars = {
        (trace["name"], partition, seconds(base), seconds(base) + length / 1000)
        for trace in lanes
        for partition, base, length in zip(trace["y"], trace["base"], trace["x"], strict=True)
    }
    assert bars == {("ann", "0", 1.0, 9.0), ("ann", "1", 1.0, 6.0), ("bob", "1", 6.0, 10.0)}
    for trace in traces:
        if trace not in lanes:
            assert all(1.0 <= seconds(at) <= 10.0 for at in trace["x"])


def counts(*history: OwnershipChange) -> list[tuple[float, dict[str, float]]]:
    """Pairs of seconds since `T0` and the number of partitions of each owner from then on."""
    return [((at - T0) / 1000, dict(owned)) for at, owned in history_picture(GROUP, history).loads]


def test_the_partition_counts_reach_the_end_of_the_picture() -> None:
    claimed = [row(0, p, "Claim", None, "ann", 1) for p in "0123"]
    assert counts(claimed[0]) == [(0, {"ann": 1}), (1, {"ann": 1})]
    handed = [row(60, p, "HandOver", "ann", "bob", 2) for p in "23"]
    assert counts(*claimed, *handed) == [(0, {"ann": 4}), (60, {"ann": 2, "bob": 2}), (63, {"ann": 2, "bob": 2})]
    released = row(60, "0", "Release", "ann", None, 2)
    assert counts(claimed[0], released) == [(0, {"ann": 1}), (60, {"ann": 0}), (63, {"ann": 0})]


def test_a_row_without_a_time_counts_but_does_not_extend_the_axis() -> None:
    no_time = -T0 / 1000
    picture = history_picture(
        GROUP,
        [
            row(no_time, "0", "Claim", None, "ann", 1),
            row(no_time, None, "Drain", "ann", "ann", None, by="operator"),
            row(10, "0", "HandOver", "ann", "bob", 2),
            row(20, "1", "Claim", None, "ann", 1),
        ],
    )
    assert (picture.begin, picture.end) == (T0 + 10_000, T0 + 21_000)
    assert picture.segments[0] == Segment("0", "bob", T0 + 10_000, T0 + 21_000)
    assert picture.moves == [(T0 + 10_000, "HandOver"), (T0 + 20_000, "Claim")]
    assert not picture.marks
    assert history_picture(GROUP, [row(no_time, "0", "Claim", None, "ann", 1)]).begin == 0


def test_a_group_without_a_history_is_an_error(ehbalance: Command, table: Path) -> None:
    with DeltaStore(str(table)) as store:
        store.create(GROUP)
    assert "has no history yet" in ehbalance.fails(1, "report", table)


def test_owners_are_ordered_by_epoch_not_by_clock() -> None:
    history = [
        row(0, "0", "Claim", None, "ann", 1),
        row(30, "0", "Steal", "bob", "cat", 3),
        row(40, "0", "Steal", "ann", "bob", 2),  # by a clock that is fast
    ]
    segments = segments_of(history, {}, T0, T0 + 60_000)
    assert segments == [
        Segment("0", "ann", T0, T0 + 40_000),
        Segment("0", "cat", T0 + 40_000, T0 + 60_000),
    ]


def test_ownership_before_the_history_is_drawn_from_its_beginning() -> None:
    history = [row(10, "1", "HandOver", "ann", "bob", 5), row(20, "1", "Release", "bob", None, 5)]
    assert segments_of(history, {"0": "cat"}, T0, T0 + 30_000) == [
        Segment("0", "cat", T0, T0 + 30_000),
        Segment("1", "ann", T0, T0 + 10_000),
        Segment("1", "bob", T0 + 10_000, T0 + 20_000),
    ]


def test_a_partition_that_returns_to_its_owner_has_not_moved() -> None:
    history = [
        row(1, "0", "Claim", None, "ann", 1),
        row(2, "0", "Release", "ann", None, 1),
        row(3, "0", "Claim", None, "ann", 2),
        row(4, "0", "HandOver", "ann", "bob", 3),
    ]
    assert moves_of(history, {}) == [(T0 + 1000, "Claim"), (T0 + 4000, "HandOver")]


def test_every_row_that_changes_no_owner_is_a_mark() -> None:
    claim = row(1, "0", "Claim", None, "ann", 1)
    odd = replace(claim, epoch=None, event="Whatever", by="me", why="so")
    assert split([claim, odd]) == ([claim], [Mark(T0 + 1000, "Whatever 0 by me: so", "0")])
