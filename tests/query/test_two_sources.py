"""The listener at the end of a batch: a query whose two sources share a lease table, and a file sink."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ehbalance.errors import OptionError
from spark_ehbalance.spark import datasource
from spark_ehbalance.spark.datasource import StreamReader
from spark_ehbalance.spark.listener import BatchEndListener
from tests.query.queries import Group
from tests.raising import raises


@pytest.fixture
def readers(group: Group, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(datasource.signal, "signal", lambda *_: None)  # type: ignore[attr-defined]
    made: list[StreamReader] = []

    def make(owner: str, **more: object) -> StreamReader:
        made.append(StreamReader(group.options(ownerId=owner, **more)))
        made[-1].latestOffset(made[-1].initialOffset())
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def progress(*readers: StreamReader, id: str = "1", name: str | None = None, sink: str = "ForeachBatchSink") -> Any:
    """A query progress event with these sources."""
    sources = [{"endOffset": reader.initialOffset()} for reader in readers]
    report = {"id": id, "name": name, "sources": sources, "sink": {"description": sink}}
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(report)))


def test_listener_ends_a_query_with_two_sources(group: Group, readers: Any) -> None:
    a, b = readers("a"), readers("b")
    listener = BatchEndListener()
    listener.onQueryProgress(progress(a))
    listener.onQueryProgress(progress(b))
    for reader in (a, b):
        reader.latestOffset(reader.initialOffset())
    listener.onQueryProgress(progress(a, b))
    for reader in (a, b):
        with raises(OptionError, "EHB_TWO_SOURCES", lease_table=re.compile("leases$")):
            reader.latestOffset(reader.initialOffset())


def test_listener_warns_once_about_a_file_sink_with_a_lease_table(
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
    assert of_first.startswith("query first has a lease table and writes plain files, FileSink[file:/data]: ")
    assert "\n" not in of_first
    assert of_second.startswith("query 3 has")
