"""What the listener does at the end of a batch: two sources of one query with one lease table, and a file sink."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.spark import datasource
from spark_ehbalance.spark.datasource import StreamReader
from spark_ehbalance.spark.listener import BatchEndListener
from tests.query.queries import Group


@pytest.fixture
def readers(group: Group, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(datasource.signal, "signal", lambda *_: None)  # type: ignore[attr-defined]
    made: list[StreamReader] = []

    def make(owner: str, **more: object) -> StreamReader:
        made.append(StreamReader(group.options(ownerId=owner, **more)))
        made[-1].latestOffset(made[-1].initialOffset())
        return made[-1]

    yield make
    for each in made:
        each.stop()


def ask(reader: StreamReader, query: str, asker: StreamReader) -> Any:
    """What `reader` says to a task of `asker`."""
    assert reader._planner is not None
    assert asker._planner is not None
    assert asker._planner.address is not None
    address, group = list(asker._planner.address), StreamOffset.from_json(asker.initialOffset()).group
    return reader._planner.handle({"query": query, "planner": address, "group": group})


def test_a_planner_knows_another_of_its_query(group: Group, readers: Any) -> None:
    a, b, elsewhere = readers("a"), readers("b"), readers("c", leaseTable=f"{group.table}2", consumerGroup="$Default")
    assert ask(a, "query 1", b) is False, "it does not know its query yet"
    assert ask(a, "query 1", a) is False
    assert ask(a, "query 1", b) is True
    assert ask(a, "query 2", b) is False, "another query of the session"
    assert ask(a, "query 1", elsewhere) is False, "another lease table"
    assert ask(a, "query 2", a) is False, "the same planner, in another run"


def progress(*readers: StreamReader, id: str = "1", name: str | None = None, sink: str = "ForeachBatchSink") -> Any:
    """A query's event, with these sources."""
    sources = [{"endOffset": each.initialOffset()} for each in readers]
    report = {"id": id, "name": name, "sources": sources, "sink": {"description": sink}}
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(report)))


def test_the_listener_warns_once_of_a_file_sink_with_a_lease_table(
    group: Group, readers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    listener, shared = BatchEndListener(), readers("a")
    alone = StreamReader(group.options(shared=False))
    listener.onQueryProgress(progress(alone, sink="FileSink[file:/data]"))
    listener.onQueryProgress(progress(shared, sink="DeltaSink[file:/data]"))
    assert not caplog.records
    for name, id in (("first", "2"), ("first", "2"), (None, "3")):
        listener.onQueryProgress(progress(shared, id=id, name=name, sink="FileSink[file:/data]"))
    of_first, of_second = caplog.messages
    assert of_first.startswith("query first has a lease table and writes plain files, FileSink[file:/data]: if several")
    assert "\n" not in of_first
    assert of_second.startswith("query 3 has")
