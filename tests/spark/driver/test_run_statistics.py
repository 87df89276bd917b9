"""The statistics that `run` logs about a query."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.spark.display import Display
from spark_ehbalance.spark.run_statistics import RunStatistics


def report(batch: int, start: int, end: int) -> dict[str, Any]:
    source = {"endOffset": json.dumps(StreamOffset("a", {"0": OffsetRange("0", 1, start, end)}).to_json())}
    return {"batchId": batch, "durationMs": {"addBatch": 1900, "triggerExecution": 2100}, "sources": [source]}


def test_events_in_progress_reports_are_counted_once() -> None:
    statistics = RunStatistics(0.0)
    statistics.update("Initializing sources", [])
    assert statistics.line(12.0) == "starting: Initializing sources · 12 s"
    stream = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@3f1c"
    statistics.update(f"Getting offsets from {stream}", [])
    assert statistics.state() == "starting: Getting offsets from the event hub"
    statistics.update("", [{"owned": 2, "all": 3, "behind": 6, "owners": ["bob"]}])
    for number, (start, end) in enumerate([(0, 100), (100, 3000), (100, 3000)]):
        statistics.add(report(min(number, 1), start, end), 20.0)
    statistics.add(report(2, 100, 3000) | {"durationMs": {"triggerExecution": 1}}, 20.0)
    assert statistics.newest_batch == 1, "Spark has reported that there was nothing to do"
    assert statistics.state() == "2 of 3 partitions · 3,000 events · 6 behind"
    assert statistics.line(30.0) == "2 of 3 partitions · 3,000 events · 6 behind · 100 events/s · last batch 2.1 s"
    assert "· 0 events/s ·" in statistics.line(51.0), "it has read nothing for 30 s"
    assert len(statistics.line(51.0)) < 80


def test_query_without_partitions_reports_their_owners() -> None:
    statistics = RunStatistics(0.0)
    statistics.add(report(0, 0, 0), 0.0)
    statistics.update("", [{"owned": 0, "all": 4, "behind": 0, "owners": ["ann"]}])
    assert statistics.state() == "0 of 4 partitions · waiting for ann · 0 events · 0 behind"
    statistics.update("", [{"owned": 0, "all": 4, "behind": 0, "owners": ["ann", "bob"]}])
    assert "waiting for ann and 1 more" in statistics.state()


def test_unchanged_statistics_are_not_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    statistics = RunStatistics(0.0)
    with caplog.at_level("INFO"), Display(["query"]) as display:
        statistics.add(report(0, 0, 100), 0.0)
        display.show([statistics])
        display.show([statistics], last=True)
        statistics.add(report(1, 100, 300), 0.0)
        display.show([statistics])
        display.show_message("stopped")
        display.show([statistics], last=True)
    assert [line.partition(" ·")[0] for line in caplog.messages] == ["100 events", "stopped", "300 events"]
