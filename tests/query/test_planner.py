"""A query's planner with the emulator without its network: idle answers, control messages and a sink's requests."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_ehbalance.clock import monotonic
from spark_ehbalance.errors import EhBalanceError, StoreReplacedError, TargetError
from spark_ehbalance.exactly_once import batch
from spark_ehbalance.exactly_once.batch import MicroBatch
from spark_ehbalance.group.changes import Join, Steal
from spark_ehbalance.group.commands import Seek
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.position import Position
from spark_ehbalance.query import engine, keeper, planner
from spark_ehbalance.query.control_socket import PlannerAddress
from spark_ehbalance.query.offsets import StreamOffset, group_name
from tests.query.queries import PARTITIONS, Group, Query
from tests.raising import raises
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("without_network")


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "alone"])
def test_available_now_ends_while_events_keep_coming(
    group: Group, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.append(50)
    query = group.query(shared=shared)
    query.planner.fix_ends()
    monkeypatch.setattr(
        keeper, "monotonic", lambda: monotonic() + 3600
    )  # after a suspension, it owns nothing at first and waits
    batches = 0
    while query.step(200):
        group.append(5)
        query.planner.fix_ends()  # a repeated call changes nothing
        batches += 1
    assert batches == 2
    assert query.plan() is None
    assert sorted(query.seen) == sorted((str(p), number) for p in range(PARTITIONS) for number in range(50))


# --- an idle query ---------------------------------------------------------------------------------------------


class RecordedWaits(threading.Event):
    """An event that records the timeouts of its waits and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return self.is_set()


def test_idle_answer_is_repeated_until_something_changes(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    idle, changed = group.query(leaseDuration="60s"), RecordedWaits()
    wait_until(lambda: idle.plan() is None and idle.planner.is_idle(idle.finished), "there is nothing to read")
    idle.planner._idle_answers, idle.planner._changed = 0, changed
    assert all(idle.planner.is_idle(idle.finished) for _ in range(30))
    assert changed.waits == [planner._IDLE_WAIT] * 10, "two of three answers do not wait"
    assert not idle.planner.is_idle(StreamOffset("a")), "nothing is known of another start"
    with monkeypatch.context() as patched:
        patched.setattr(planner, "monotonic", lambda: monotonic() + engine._LOAD_INTERVAL)
        assert not idle.planner.is_idle(idle.finished), "after a while"
    changed.set()
    assert not idle.planner.is_idle(idle.finished)


# --- control messages ------------------------------------------------------------------------------------------


def message(end: StreamOffset, **more: object) -> dict[str, object]:
    return {"finished": end.to_json(), **more}


def test_stale_or_malformed_control_message_changes_nothing(group: Group) -> None:
    group.append(10)
    a = group.query()
    first = a.batch(40)
    a.run(first)
    group.append(10)
    second = a.batch()
    invented = replace(second, ranges={p: range_ for p, range_ in second.ranges.items() if p in "01"})
    for end in (first, invented):
        assert a.planner.handle(message(end)) is True
    wrong = first.to_json()
    wrong["partitions"]["0"]["to"] = True
    malformed: list[Any] = [{"finished": {"format": 1}}, {"finished": wrong}, {}, [], 1, "leave", None]
    malformed += [message(first, leave=leave) for leave in ("false", 1, None, {})]
    for content in malformed:
        with pytest.raises(EhBalanceError):
            a.planner.handle(content)
    before = group.snapshot().version
    wait_until(lambda: group.snapshot().version > before, "a renewal came")
    assert max(group.checkpoints().values()) <= 5, "none of it counts"


def test_planner_keeps_the_last_valid_core_count(group: Group) -> None:
    query = group.query()
    for reported, known in ((None, None), (6, 6), (0, 6), ("8", 6), (True, 6), (2, 2)):
        query.planner.handle(message(query.finished) | {"cores": reported})
        assert query.planner.cores == known


def test_query_leaves_when_the_driver_requests_it(group: Group) -> None:
    query = group.query()
    wait_until(lambda: query.planner.handle(message(query.finished, leave=True)), "it has given everything back")
    assert {lease.owner for lease in group.leases().values()} == {None}


def test_planner_recognizes_another_planner_of_its_query(group: Group) -> None:
    a, b = group.query("a").planner, group.query("b").planner
    own, other = (planner.address or PlannerAddress("") for planner in (a, b))

    def report(query: str, source: PlannerAddress, table: str = group_name(str(group.table))) -> object:
        return a.handle({"query": query, "planner": list(source), "group": table})

    assert report("query 1", other) is False, "it does not know its query yet"
    assert report("query 1", own) is False
    assert report("query 1", other) is True
    assert report("query 2", other) is False, "another query of the session"
    assert report("query 1", other, "another lease table") is False


# --- a sink's requests -----------------------------------------------------------------------------------------


def request_details(query: Query, end: StreamOffset, **more: object) -> dict[str, Any]:
    answer = query.planner.handle({"batch": end.to_json(), **more})
    assert isinstance(answer, dict)
    return answer


def test_batch_details_contain_ranges_and_lost_partitions(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    a, initial = group.query(), StreamOffset("a", {}, lineage="one")
    assert request_details(a, initial, lost=True)["ranges"] == {}, "Spark runs batch 0 also without data"
    group.append(10)
    end = a.batch()
    a.run(end)
    assert "error" in request_details(a, initial)
    hub, created = a.planner.parts[1].name, end.hub and end.hub.created_ms
    everything = {"hub": hub, "created": created, "ranges": {str(p): [0, 10] for p in range(PARTITIONS)}}
    assert request_details(a, end) == everything
    assert request_details(a, end, lost=True) == {**everything, "lost": []}
    thief, epoch = Author("thief", "1"), group.leases()["3"].epoch
    group.order(
        Seek(by=thief, at_ms=0, partition="3", position=Position.before(2), force=True),
        Join(by=thief, at_ms=0, strategy="cooperative", lease_duration_ms=3000),
        Steal(by=thief, at_ms=0, partition="3", epoch=epoch + 1),
    )
    assert request_details(a, end, lost=True) == {**everything, "lost": ["3"]}
    assert "another member took a partition that a seek had moved" in caplog.text
    assert "partition=3 " in caplog.text
    assert "not the one in flight" in request_details(a, replace(end, owner="b"))["error"]
    a.stop()
    assert request_details(a, end, lost=True)["lost"] is None, "the table is no longer read"


class Batch(MicroBatch):
    """The batch of a query without Spark."""

    def __init__(self, query: Query, end: StreamOffset, monkeypatch: pytest.MonkeyPatch) -> None:
        self._end, self._planner = end, PlannerAddress("")
        answers = lambda _, question: json.loads(json.dumps(query.planner.handle(question)))  # noqa: E731
        monkeypatch.setattr(batch, "request", answers)


def test_batch_reports_why_the_lease_table_cannot_be_read(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.append(1)
    query = group.query()
    end = query.batch()
    query.run(end)
    monkeypatch.setattr(batch, "PATIENCE", 2.5)
    DeltaTable(str(group.table)).alter.set_table_properties({"delta.logRetentionDuration": "interval 30 days"})
    reason = re.compile("could not be read for 2.5 s .*another program changed delta.logRetentionDuration")
    with raises(TargetError, "EHB_TARGET_BATCH_UNKNOWN", reason=reason):
        Batch(query, end, monkeypatch).lost()


def test_batch_raises_the_error_that_ended_the_lease_keeper(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.append(1)
    query = group.query()
    end = query.batch()
    query.run(end)
    table = DeltaTable(str(group.table))
    table.restore(table.version() - 1)
    with raises(StoreReplacedError, "EHB_LEASE_TABLE_ROLLED_BACK", problem=re.compile("RESTORE")):
        Batch(query, end, monkeypatch).lost()
    with raises(TargetError, "EHB_TARGET_BATCH_UNKNOWN", reason=re.compile("not the one in flight")):
        Batch(query, replace(end, owner="b"), monkeypatch).lost()
