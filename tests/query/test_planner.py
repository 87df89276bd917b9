"""Planners of one group, alone or in turns: with real keepers, and values in the place of the hub and the table."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.group.model import MemberState
from spark_ehbalance.group.strategies import STRATEGIES
from spark_ehbalance.query import engine, planner
from spark_ehbalance.query.offsets import StreamOffset
from tests.query.queries import Query
from tests.query.values_group import ValueGroup
from tests.waiting import wait_until

EVERYTHING = {str(partition) for partition in range(8)}

ways = pytest.mark.parametrize("shared", [True, False], ids=["shared", "alone"])


@pytest.fixture
def group() -> Iterator[ValueGroup]:
    """A hub with 8 empty partitions."""
    made = ValueGroup(8)
    yield made
    made.close()


# --- batches ---------------------------------------------------------------------------------------------------


def test_a_finished_batch_is_checkpointed_once(group: ValueGroup) -> None:
    group.hub.append(10)
    a = group.query("a")
    end = a.batch()
    assert end.ranges.keys() == EVERYTHING
    a.run(end)
    assert group.checkpoints() == {0}
    a.planner.finish(end)
    wait_until(lambda: group.checkpoints() == {10}, "the table has it")
    before = group.snapshot().version
    for _ in range(50):
        a.planner.finish(end)
    wait_until(lambda: group.snapshot().version > before, "a renewal came")
    assert group.snapshot().version <= before + 2, "finishing again writes nothing"


def test_a_change_of_ownership_makes_no_batch(group: ValueGroup) -> None:
    group.hub.append(3)
    a = group.query("a")
    a.read(24)
    end = a.finished
    a.planner.finish(end)
    wait_until(lambda: group.checkpoints() == {3}, "all is checkpointed")
    b = group.query("b")
    group.wait_owned(4, 4)
    assert a.planner.next_batch(end, None) is end
    assert b.plan() is None
    b.stop()
    wait_until(lambda: len(a.owned()) == 8, "a has all again")
    assert a.planner.next_batch(end, None) is end


def test_an_idle_query_takes_and_reads_what_it_is_given(group: ValueGroup) -> None:
    a, b = group.query("a"), group.query("b")
    group.wait_owned(4, 4)
    assert b.plan() is None
    a.stop()
    group.hub.append(1)
    b.read(8)


# --- what the hub is asked -------------------------------------------------------------------------------------


# --- events that are gone --------------------------------------------------------------------------------------


def read_ten(group: ValueGroup, *, shared: bool) -> StreamOffset:
    """Have a query read and finish ten events of each partition, and stop; returns its offset."""
    group.hub.append(10)
    first = group.query("a", shared=shared)
    first.read(80)
    first.planner.finish(first.finished)
    first.stop()
    return first.finished


def trim(group: ValueGroup) -> None:
    group.hub.append(10)
    group.hub.set({"3": (15, 20)})


def make_anew(group: ValueGroup) -> None:
    group.hub.set({**dict.fromkeys(EVERYTHING, (0, 0)), "3": (0, 5)})


@ways
@pytest.mark.parametrize("follows", [True, False])
def test_without_fail_on_data_loss_aged_out_events_are_left_out(
    group: ValueGroup, caplog: pytest.LogCaptureFixture, shared: bool, follows: bool
) -> None:
    finished = read_ten(group, shared=shared)
    again = group.query("a", finished, shared=shared, fail_on_data_loss=False, follows=follows)
    trim(group)
    again.read(75)
    assert Counter(again.seen) == Counter({(p, n): 1 for p in EVERYTHING for n in range(15 if p == "3" else 10, 20)})
    assert "partition 3: reading was to go on at sequence number 10" in caplog.text


def test_a_recreated_hub_is_read_from_its_start_also_by_the_next_owner(group: ValueGroup) -> None:
    finished = read_ten(group, shared=True)
    make_anew(group)
    again = group.query("a", finished, fail_on_data_loss=False)
    again.read(5)
    assert again.seen == [("3", number) for number in range(5)]
    again.planner.finish(again.finished)
    again.stop()
    group.hub.append(15, "3")
    other = group.query("b", fail_on_data_loss=False)
    other.read(15)
    assert other.seen == [("3", number) for number in range(5, 20)]


# --- restarts and replays --------------------------------------------------------------------------------------


@ways
@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_logged_batch_is_replayed(group: ValueGroup, orderly: bool, strategy: str, shared: bool) -> None:
    group.hub.append(10)
    first = group.query("a", shared=shared, strategy_name=strategy)
    wait_until(lambda: len(first.owned()) == 8, "it has all")
    first.read(24, limit=24)
    one, two = first.finished, first.batch(32)
    if orderly:
        first.stop()
    group.hub.append(5)
    again = group.query("a", one, two, shared=shared, strategy_name=strategy)
    ranges = again.run(two)
    moved = {(each.partition, each.start, each.end) for each in two.ranges.values() if len(each)}
    assert {(each.partition, each.start, each.end) for each in ranges if len(each)} == moved
    assert all(each.epoch > two.ranges[each.partition].epoch for each in ranges)
    assert not shared or all(each.epoch == group.leases()[each.partition].epoch for each in ranges)
    assert again.planner.ranges(two) == ranges, "asked again"
    again.read(120 - 24)
    assert Counter(first.seen + again.seen) == group.hub.everything()
    if shared:
        again.planner.finish(again.finished)
        wait_until(lambda: group.checkpoints() == {15}, "all is checkpointed")


@pytest.mark.parametrize("read", [80, 40, 0], ids=["all", "a part", "nothing"])
def test_a_replay_skips_what_another_member_has_owned(group: ValueGroup, read: int) -> None:
    """What the other has not finished is left to the next batch: this one may have been cut short when the other took
    the partitions, and then written, so that its sink skips it."""
    group.hub.append(10)
    first = group.query("a")
    end = first.batch()
    first.stop()
    b = group.query("b")
    wait_until(lambda: len(b.owned()) == 8, "b has all")
    if read:
        b.read(read, limit=read)
        b.planner.finish(b.finished)
    b.stop()
    again = group.query("a", None, end)
    wait_until(lambda: len(again.owned()) == 8, "it has all again")
    assert again.run(end) == []
    group.hub.append(1)
    again.read(88 - read)
    assert Counter(b.seen + again.seen) == group.hub.everything()


@ways
@pytest.mark.parametrize("orderly", [(False, False, False), (True, True, True), (True, False, True)])
def test_a_logged_batch_is_replayed_after_several_restarts(
    group: ValueGroup, orderly: tuple[bool, ...], shared: bool
) -> None:
    group.hub.append(10)
    again = group.query("a", shared=shared)
    end = again.batch()
    for stops in orderly:
        if stops:
            again.stop()
        again = group.query("a", None, end, shared=shared)
        wait_until(lambda: len(again.owned()) == 8, "it has all again")  # noqa: B023
        assert {each.partition for each in again.planner.ranges(end)} == EVERYTHING


def test_a_logged_batch_is_replayed_after_the_process_was_suspended(group: ValueGroup) -> None:
    group.hub.append(10)
    end = group.query("a").batch()
    again = group.query("a", None, end, lease_duration=0.5)
    wait_until(lambda: len(again.owned()) == 8, "it has all again")
    keeper, _, _ = again.planner.parts
    with keeper.engine():  # which takes no turn meanwhile
        wait_until(lambda: not again.owned(), "its leases have lapsed")
        assert {each.partition for each in again.planner.ranges(end)} == EVERYTHING


def test_the_host_s_times_are_read_with_measurements_only(group: ValueGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[None] = []
    monkeypatch.setattr(planner, "cpu_time", lambda: readings.append(None))
    query, began = group.query("a"), time.monotonic()
    for _ in range(20):
        group.hub.append(1)
        query.run(query.batch())
    assert 1 <= len(readings) <= 1 + (time.monotonic() - began)


# --- Trigger.AvailableNow --------------------------------------------------------------------------------------


@ways
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


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_available_now_waits_until_there_is_nothing_more_to_take(group: ValueGroup, strategy: str) -> None:
    group.hub.append(5)
    query = group.query("a", strategy_name=strategy, balance_interval=5.0, lease_duration=30.0)
    query.planner.fix_ends()
    assert len(query.owned()) == 8
    query.read(40)
    assert query.plan() is None


def test_available_now_continues_after_batches_longer_than_max_stall(group: ValueGroup) -> None:
    group.hub.append(10)
    logged = group.query("a").batch(40)
    query = group.query("a", None, logged, max_stall=0.3, look_interval=0.1)

    def given_back() -> bool:
        seen, owners = query.planner.parts[0].snapshot, {lease.owner for lease in group.leases().values()}
        return seen is not None and seen.members["a"].state is MemberState.LEAVING and owners == {None}

    ranges = query.planner.ranges(logged)
    wait_until(given_back, "the replay hangs")
    query.seen += [(each.partition, number) for each in ranges for number in range(each.start, each.end)]
    query.finished = logged
    query.planner.finish(logged)
    query.planner.fix_ends()
    assert query.step(20) == 20
    query.batch(10)
    wait_until(given_back, "the next batch hangs")
    query.run(query.logged)
    while query.step(20):
        pass
    assert Counter(query.seen) == group.hub.everything()


def test_available_now_ends_when_partitions_come_and_go(group: ValueGroup, caplog: pytest.LogCaptureFixture) -> None:
    group.hub.append(5)
    a, b = group.query("a"), group.query("b")
    group.wait_owned(4, 4)
    a.planner.fix_ends()
    b.stop()
    wait_until(lambda: len(a.owned()) == 8, "a gets more")
    there = group.hub.everything()
    while a.step(20):
        group.hub.append(5)
    assert Counter(a.seen) == there, "it is read to where it ended when it came"


# --- an idle query ---------------------------------------------------------------------------------------------


class Waits(threading.Event):
    """An event that notes for how long it was waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return self.is_set()


def idle(query: Query) -> Query:
    """`query`, when there is nothing to read for it."""
    wait_until(lambda: query.plan() is None and query.planner.still_idle(query.finished), "there is nothing to read")
    return query


def test_two_of_three_idle_answers_do_not_wait(group: ValueGroup) -> None:
    group.changed = Waits
    query = idle(group.query(lease_duration=60.0))
    changed = group.watcher.changed
    assert isinstance(changed, Waits)
    changed.waits.clear()
    assert all(query.planner.still_idle(query.finished) for _ in range(30))
    assert changed.waits == [planner._IDLE_WAIT] * 10


def test_the_third_idle_answer_waits_until_an_event_arrives(group: ValueGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_IDLE_WAIT", 3600.0)
    monkeypatch.setattr(engine, "_LOAD_INTERVAL", 3600.0)
    query = idle(group.query(lease_duration=60.0))
    answers: list[bool] = []

    def ask() -> None:
        while query.planner.still_idle(query.finished):
            answers.append(True)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    wait_until(lambda: answers, "it was asked")
    group.hub.append(1)
    asking.join(60)
    assert not asking.is_alive(), "the event has woken it"
    assert len(answers) <= 3, "it was not asked over and over"
    query.read(8)


def test_an_idle_answer_is_checked_again_after_a_while_and_for_another_start(
    group: ValueGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_LOAD_INTERVAL", 0.2)
    query = idle(group.query(lease_duration=60.0))
    wait_until(lambda: not query.planner.still_idle(query.finished), "it is looked into again")
    assert not query.planner.still_idle(StreamOffset("a")), "nothing is known of another start"


# --- control messages ------------------------------------------------------------------------------------------


def message(end: StreamOffset, **more: object) -> dict[str, object]:
    return {"finished": end.to_json(), **more}


@pytest.mark.parametrize("replayed", [False, True])
def test_a_control_message_that_a_batch_has_ended_checkpoints_it(group: ValueGroup, replayed: bool) -> None:
    group.hub.append(10)
    a = group.query("a")
    end = a.batch()
    if replayed:
        a = group.query("a", None, end)
        a.run(end)
    assert a.planner.handle(message(end)) is True
    wait_until(lambda: group.checkpoints() == {10}, "it is checkpointed")


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


# --- what a sink asks ------------------------------------------------------------------------------------------


def question(end: StreamOffset, **more: object) -> dict[str, object]:
    return {"batch": end.to_json(), **more}


def test_the_driver_says_how_many_tasks_run_at_the_same_time(group: ValueGroup) -> None:
    group.hub.append(10)
    a = group.query("a")
    end = a.batch()
    for said, known in ((None, None), (6, 6), (0, 6), ("8", 6), (True, 6), (2, 2)):
        a.planner.handle(message(end) | {"cores": said})
        assert a.planner.cores == known


def test_a_sink_is_told_what_its_batch_reads_and_what_was_taken_meanwhile(group: ValueGroup) -> None:
    group.hub.append(10)
    a = group.query("a")
    end = a.batch()
    a.run(end)
    everything = {"hub": "namespace/hub", "created": 1, "ranges": {p: [0, 10] for p in EVERYTHING}}
    assert a.planner.handle(question(end)) == everything
    assert a.planner.handle(question(end, look=True)) == {**everything, "lost": []}
    group.steal("3")
    assert a.planner.handle(question(end, look=True)) == {**everything, "lost": ["3"]}
    assert a.planner.handle(question(replace(end, owner="b"))) == {
        "error": "the batch that was asked about is not the one in flight"
    }


def test_a_batch_without_data_before_the_first_reads_nothing(group: ValueGroup) -> None:
    a = group.query("a")
    initial = StreamOffset("a", {}, lineage="one")
    answer = {"hub": "namespace/hub", "created": 1, "ranges": {}}
    assert a.planner.handle(question(initial)) == answer, "Spark runs batch 0 also without data"
    assert a.planner.handle(question(initial, look=True)) == {**answer, "lost": []}
    group.hub.append(1)
    a.run(a.batch())
    assert "error" in a.planner.handle(question(initial))


def test_a_sink_that_runs_a_batch_again_is_told_what_is_read_now(group: ValueGroup) -> None:
    group.hub.append(10)
    first = group.query("a")
    end = first.batch()
    first.stop()
    group.query("b", max_owned=1)
    group.wait_owned(1)
    again = group.query("a", unfinished=end)
    read = {each.partition: [each.start, each.end] for each in again.run(end)}
    assert 0 < len(read) < 8
    answer = again.planner.handle(question(end, look=True))
    assert isinstance(answer, dict)
    assert answer["ranges"] == read
    assert answer["lost"] == []


@ways
def test_a_batch_of_a_query_that_ends_is_not_answered_for(group: ValueGroup, shared: bool) -> None:
    group.hub.append(10)
    a = group.query("a", shared=shared)
    end = a.batch()
    for lost in ([], None):  # there is no look any more
        answer = a.planner.handle(question(end, look=True))
        assert isinstance(answer, dict)
        assert answer["lost"] == lost
        a.stop()
