"""Planners of one group, alone or in turns: with real keepers, and values in the place of the hub and the table."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.query import engine, planner
from spark_ehbalance.query.offsets import StreamOffset
from tests.query.queries import Query
from tests.query.values_group import ValueGroup
from tests.waiting import wait_until

EVERYTHING = {str(partition) for partition in range(8)}


@pytest.fixture
def group() -> Iterator[ValueGroup]:
    """A hub with 8 empty partitions."""
    made = ValueGroup(8)
    yield made
    made.close()


def test_a_recreated_hub_is_read_from_its_start_also_by_the_next_owner(group: ValueGroup) -> None:
    group.hub.append(10)
    first = group.query("a")
    first.read(80)
    first.planner.finish(first.finished)
    first.stop()
    group.hub.set({**dict.fromkeys(EVERYTHING, (0, 0)), "3": (0, 5)})
    again = group.query("a", first.finished, fail_on_data_loss=False)
    again.read(5)
    assert again.seen == [("3", number) for number in range(5)]
    again.planner.finish(again.finished)
    again.stop()
    group.hub.append(15, "3")
    other = group.query("b", fail_on_data_loss=False)
    other.read(15)
    assert other.seen == [("3", number) for number in range(5, 20)]


def test_the_host_s_times_are_read_with_measurements_only(group: ValueGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[None] = []
    monkeypatch.setattr(planner, "cpu_time", lambda: readings.append(None))
    query, began = group.query("a"), time.monotonic()
    for _ in range(20):
        group.hub.append(1)
        query.run(query.batch())
    assert 1 <= len(readings) <= 1 + (time.monotonic() - began)


# --- Trigger.AvailableNow --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "alone"])
def test_available_now_ends_while_events_keep_coming(group: ValueGroup, shared: bool) -> None:
    group.hub.append(50)
    query = group.query("a", shared=shared)
    query.planner.fix_ends()
    there, batches = group.hub.everything(), 0
    while query.step(200):
        group.hub.append(5)
        query.planner.fix_ends()  # again, which changes nothing
        batches += 1
    assert batches == 2
    assert query.plan() is None
    assert Counter(query.seen) == there


# --- an idle query ---------------------------------------------------------------------------------------------


class Waits(threading.Event):
    """An event that notes for how long it was waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return self.is_set()


@pytest.fixture
def idle(group: ValueGroup) -> Query:
    """A query for which there is nothing to read."""
    group.changed = Waits
    query = group.query(lease_duration=60.0)
    wait_until(lambda: query.plan() is None and query.planner.still_idle(query.finished), "there is nothing to read")
    return query


def test_two_of_three_idle_answers_do_not_wait(group: ValueGroup, idle: Query) -> None:
    changed = group.watcher.changed
    assert isinstance(changed, Waits)
    changed.waits.clear()
    assert all(idle.planner.still_idle(idle.finished) for _ in range(30))
    assert changed.waits == [planner._IDLE_WAIT] * 10


def test_an_idle_answer_is_checked_again_when_something_changes_and_for_another_start(
    group: ValueGroup, idle: Query
) -> None:
    assert not idle.planner.still_idle(StreamOffset("a")), "nothing is known of another start"
    group.hub.append(1)
    assert not idle.planner.still_idle(idle.finished)


def test_an_idle_answer_is_checked_again_after_a_while(idle: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + engine._LOAD_INTERVAL)
    monkeypatch.setattr(planner, "time", later)
    assert not idle.planner.still_idle(idle.finished)


# --- control messages ------------------------------------------------------------------------------------------


def message(end: StreamOffset, **more: object) -> dict[str, object]:
    return {"finished": end.to_json(), **more}


def test_a_control_message_of_another_batch_or_form_changes_nothing(group: ValueGroup) -> None:
    group.hub.append(10)
    a = group.query("a")
    first = a.batch(40)
    a.run(first)
    group.hub.append(10)
    second = a.batch()
    invented = replace(second, ranges={p: each for p, each in second.ranges.items() if p in "01"})
    for end in (first, invented):
        assert a.planner.handle(message(end)) is True
    wrong = first.to_json()
    wrong["partitions"]["0"]["to"] = True
    malformed: list[object] = [{"finished": {"format": 1}}, {"finished": wrong}, {}, [], 1, "leave", None]
    malformed += [message(first, leave=leave) for leave in ("false", 1, None, {})]
    for each in malformed:
        with pytest.raises(EhBalanceError):
            a.planner.handle(each)  # type: ignore[arg-type]
    before = group.snapshot().version
    wait_until(lambda: group.snapshot().version > before, "a renewal came")
    assert all(lease.checkpoint and lease.checkpoint.next <= 5 for lease in group.leases().values()), (
        "none of it counts"
    )


def test_the_driver_says_how_many_tasks_run_at_the_same_time(group: ValueGroup) -> None:
    group.hub.append(10)
    a = group.query("a")
    end = a.batch()
    for said, known in ((None, None), (6, 6), (0, 6), ("8", 6), (True, 6), (2, 2)):
        a.planner.handle(message(end) | {"cores": said})
        assert a.planner.cores == known


# --- what a sink asks ------------------------------------------------------------------------------------------


def test_a_sink_is_told_what_its_batch_reads_and_what_was_taken_meanwhile(group: ValueGroup) -> None:
    group.hub.append(10)
    a = group.query("a")
    end = a.batch()
    a.run(end)
    question = {"batch": end.to_json()}
    everything = {"hub": "namespace/hub", "created": 1, "ranges": {p: [0, 10] for p in EVERYTHING}}
    assert a.planner.handle(question) == everything
    assert a.planner.handle(question | {"look": True}) == {**everything, "lost": []}
    group.steal("3")
    assert a.planner.handle(question | {"look": True}) == {**everything, "lost": ["3"]}
    assert a.planner.handle({"batch": replace(end, owner="b").to_json()}) == {
        "error": "the batch that was asked about is not the one in flight"
    }


def test_a_batch_without_data_before_the_first_reads_nothing(group: ValueGroup) -> None:
    a = group.query("a")
    question = {"batch": StreamOffset("a", {}, lineage="one").to_json(), "look": True}
    answer = {"hub": "namespace/hub", "created": 1, "ranges": {}, "lost": []}
    assert a.planner.handle(question) == answer, "Spark runs batch 0 also without data"
    group.hub.append(1)
    a.run(a.batch())
    assert "error" in a.planner.handle(question)


def test_of_a_query_that_has_ended_nothing_is_known(group: ValueGroup) -> None:
    group.hub.append(10)
    a = group.query("a")
    end = a.batch()
    a.stop()
    answer = a.planner.handle({"batch": end.to_json(), "look": True})
    assert answer["lost"] is None, "there is no look any more"
