"""A query's checkpoint and its lease table, of which one was copied, set back or moved without the other.

Real planners, the emulator and a Delta table; Spark's part is played by `Query`.
"""

from __future__ import annotations

import shutil
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from spark_ehbalance.errors import DataLossError, FencedError
from spark_ehbalance.leases.orders import Seek
from spark_ehbalance.leases.transitions import Heartbeat, Join, Leave
from spark_ehbalance.source import processes
from spark_ehbalance.source.offsets import StreamOffset
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.values.position import Position
from tests.source.lives import Lives
from tests.source.queries import PARTITIONS, Event, Group, Query, forget_processes
from tests.stores.store_conformance import BOB, committed
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("without_network")


def run(group: Group, query: Query, batches: int = 1) -> list[StreamOffset]:
    """Have the query finish so many batches of an event of each partition; their ends."""
    ends = []
    for _ in range(batches):
        group.append(1)
        read, ends_before = len(query.seen), query.finished
        query.read(read + PARTITIONS)
        assert query.finished != ends_before
        ends.append(query.finished)
        query.planner.finish(query.finished)
    return ends


def known_batch(group: Group, query: Query) -> int:
    """The last batch of the query that the table knows."""
    return group.snapshot().queries[query.finished.lineage].batch


def once_each(group: Group, *queries: Query) -> None:
    assert Counter(event for query in queries for event in query.seen) == group.everything()


# --- a checkpoint that is older than the table -----------------------------------------------------------------


def test_a_checkpoint_that_was_set_back_is_refused(group: Group) -> None:
    """Sinks that know batch numbers would leave out the new events of the old numbers."""
    first = group.query("a")
    ends = run(group, first, 4)
    first.stop()
    last = ends[-1].batch
    assert known_batch(group, first) == last
    group.append(1)
    before = group.snapshot()
    message = rf"ends with batch {last - 2}, and the table knows that it has begun batch {last}, at 20.* as a on"
    with pytest.raises(DataLossError, match=message) as caught:
        group.query("a", ends[-3])
    assert "new checkpointLocation" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert group.snapshot() == before, "nothing was written"
    anew = group.query("a")  # as the error advises
    anew.read(PARTITIONS)
    once_each(group, first, anew)


def test_a_batch_that_was_finished_after_the_copy_reads_nothing(group: Group) -> None:
    first = group.query("a")
    (one,) = run(group, first)
    group.append(1)
    two = first.batch()
    first.run(two)
    first.planner.finish(two)
    first.stop()
    copy = group.query("a", one, two)
    assert copy.run(two) == []
    group.append(1)
    copy.read(PARTITIONS)
    once_each(group, first, copy)


# --- batch numbers that a sink may have, and the table has not heard of ------------------------------------------


class NumberedSink:
    """A sink that knows batch numbers, as Delta's own: what has a number that it has is left out, whatever it is."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Event]] = {}

    def run(self, query: Query, end: StreamOffset) -> None:
        query.run(end)
        rows, query.seen = query.seen, []
        self.batches.setdefault(end.batch, rows)

    def read_on(self, query: Query, group: Group) -> None:
        """Run batches until all events are there."""
        wait_until(lambda: self.has_everything(query, group), "all is there")

    def has_everything(self, query: Query, group: Group) -> bool:
        """After one more batch, if there is one."""
        if query.plan() is not None:
            self.run(query, query.logged)
        return group.everything().keys() <= self.events().keys()

    def events(self) -> Counter[Event]:
        return Counter(event for rows in self.batches.values() for event in rows)


@pytest.fixture
def sink_and_killed(group: Group, lives: Lives) -> tuple[NumberedSink, Query]:
    """A query whose sink has written batch 2, and that was killed before its table has heard of that."""
    sink, query = NumberedSink(), lives.start(lambda: group.query("a"))
    group.append(1)
    sink.run(query, query.batch())
    query.planner.finish(query.finished)
    wait_until(lambda: known_batch(group, query) == 1, "the table knows")
    lives.cut_off(query)
    group.append(1)
    one = query.finished
    sink.run(query, query.batch())
    assert query.finished.batch == 2
    lives.kill(query)
    query.finished = one
    return sink, query


def test_a_batch_that_the_table_has_not_heard_of_hides_no_new_events(
    group: Group, lives: Lives, sink_and_killed: tuple[NumberedSink, Query], caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint is set back by that batch. The sink takes the next one of its number for that one."""
    sink, killed = sink_and_killed
    again = lives.start(lambda: group.query("a", killed.finished))
    group.append(1)
    end = again.batch()
    assert (end.batch, len(again.planner.ranges(end)), len(end.other_positions)) == (2, 0, PARTITIONS)
    assert "batches up to 2 read nothing" in caplog.text
    sink.run(again, end)
    sink.read_on(again, group)
    twice = sink.events() - group.everything()
    assert twice == {(str(p), 1): 1 for p in range(PARTITIONS)}, "those of the batch that nobody knows of"


def test_a_replay_is_followed_by_an_empty_batch(
    group: Group, lives: Lives, sink_and_killed: tuple[NumberedSink, Query]
) -> None:
    """A copy made in a batch ends with that one: the next number is the one in doubt."""
    sink, killed = sink_and_killed
    again = lives.start(lambda: group.query("a", killed.finished, killed.logged))
    sink.run(again, killed.logged)
    group.append(1)
    sink.run(again, again.batch())
    assert sink.batches[3] == []
    sink.read_on(again, group)
    assert sink.events() == group.everything()


def test_a_batch_that_runs_for_long_is_known_while_it_runs(group: Group, lives: Lives) -> None:
    query = lives.start(lambda: group.query("a"))
    (one,) = run(group, query)
    group.append(1)
    query.run(query.batch())
    wait_until(lambda: group.snapshot().queries[one.lineage].begun == 2, "a renewal tells that it was begun")
    assert known_batch(group, query) == 1
    lives.kill(query)
    with pytest.raises(DataLossError, match="ends with batch 1, and the table knows that it has begun batch 2"):
        lives.start(lambda: group.query("a", one))


@pytest.mark.parametrize("told", [True, False])
def test_a_checkpoint_beside_which_another_has_gone_on_is_refused(
    group: Group, lives: Lives, sink_and_killed: tuple[NumberedSink, Query], told: bool
) -> None:
    """It was set back, and is put back: both have a batch 2, and a sink that has one leaves the other out."""
    sink, killed = sink_and_killed
    again = lives.start(lambda: group.query("a", killed.finished))
    sink.run(again, again.batch())
    if told:
        wait_until(lambda: group.snapshot().queries[killed.finished.lineage].begun == 2, "a renewal tells")
    lives.kill(again)
    with pytest.raises(DataLossError, match=r"ends with batch 2, and another one of that number may have been begun"):
        lives.start(lambda: group.query("a", killed.logged))
    back = lives.start(lambda: group.query("a", killed.finished, killed.logged, failOnDataLoss=False))
    assert back.planner.ranges(killed.logged) == [], "the sink has another batch of that number"
    back.planner.finish(killed.logged)
    back.finished = killed.logged
    sink.read_on(back, group)


def test_after_an_orderly_end_no_number_is_in_doubt(group: Group, lives: Lives) -> None:
    query = lives.start(lambda: group.query("a"))
    (one,) = run(group, query)
    lives.stop(query)
    again = lives.start(lambda: group.query("a", one))
    group.append(1)
    assert again.run(again.batch())
    once_each(group, query, again)


def test_numbers_that_were_used_are_passed_over_where_loss_is_allowed(
    group: Group, lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    sink, query = NumberedSink(), lives.start(lambda: group.query("a"))
    ends = []
    for _ in range(4):
        group.append(1)
        sink.run(query, query.batch())
        query.planner.finish(query.finished)
        ends.append(query.finished)
    lives.stop(query)
    again = lives.start(lambda: group.query("a", ends[1], failOnDataLoss=False))
    assert "the checkpoint was set back, or is a copy" in caplog.text
    group.append(1)
    sink.read_on(again, group)
    assert sink.events() == group.everything()


# --- a copy, or the same checkpoint, while the query runs ------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("told", [True, None])
def test_a_query_that_runs_already_is_refused_and_goes_on(
    group: Group, name: str, told: bool | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On the same machine, and on another one (None: only the table tells)."""
    monkeypatch.setattr(processes, "is_alive", lambda process: told)
    first = group.query("a")
    (one,) = run(group, first)
    group.append(1)
    two = first.batch()
    with pytest.raises(FencedError, match=r"this query runs already as a on .*nothing was read or written here"):
        group.query(name, one, two)
    assert "seems to run already, as a: waiting up to 3 s" in caplog.text
    first.run(two)
    run(group, first)
    once_each(group, first)


def test_a_copy_of_checkpoint_and_table_is_refused_while_the_query_goes_on(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second environment: nobody lives in the copy of the table, and a sink takes both for one query."""
    monkeypatch.setattr(processes, "is_alive", lambda process: None)  # on another machine
    first, place = group.query("a"), group.table
    (one,) = run(group, first)
    shutil.copytree(place, tmp_path / "copy")
    group.table = tmp_path / "copy"
    with pytest.raises(FencedError, match="this query runs already as a on"):
        group.query("a", one)
    group.table = place
    run(group, first)
    first.stop()
    group.table = tmp_path / "copy"
    with pytest.raises(DataLossError, match=rf"leaseTable={place}: this query's checkpoint ends with batch 1, and"):
        group.query("a", one)


def test_a_table_that_was_moved_from_where_nobody_can_look_is_taken_for_the_same(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    first = group.query("a")
    (one,) = run(group, first)
    first.stop()
    place, group.table = group.table, group.table.with_name("moved")
    place.rename(group.table)
    place.write_text("no folder")
    group.query("a", one)
    assert f"was at {place} before. Whether it is used there cannot be told" in caplog.text


def test_a_server_that_a_checkpoint_names_hears_nothing(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever can write a checkpoint must not get the storage's credentials by it."""
    first = group.query("a")
    (one,) = run(group, first)
    first.stop()
    assert one.table is not None
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"https://127.0.0.1:{server.getsockname()[1]}/account/leases"
        group.query("a", replace(one, table=replace(one.table, location=place)))
        assert f"was at {place} before. Whether it is used there cannot be told: it is in another" in caplog.text
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_query_whose_machine_is_gone_is_waited_for(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    process, end = group.process("a")
    process.kill()
    process.wait()
    monkeypatch.setattr(processes, "is_alive", lambda process: None)
    again = group.query("a", None, end)
    again.run(end)
    group.append(2)
    again.read(2 * PARTITIONS)
    once_each(group, again)


@pytest.mark.parametrize("meanwhile", ["nothing", "a batch ends", "a batch begins and ends"])
def test_in_a_rolling_restart_the_new_one_waits_for_the_old_one(
    group: Group, meanwhile: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its name is another one, as a pod's is. What it has read of the checkpoint may be too old by then."""
    old, unfinished = group.query("pod-1", leaseDuration="60s"), None
    (end,) = run(group, old)
    if meanwhile == "a batch ends":
        group.append(1)
        unfinished = old.batch()
    with ThreadPoolExecutor(1) as starting:
        new = starting.submit(group.query, "pod-2", end, unfinished, leaseDuration="60s")
        wait_until(lambda: "seems to run already, as pod-1" in caplog.text or new.done(), "the new one waits")
        assert not new.done()
        if unfinished:
            old.run(unfinished)  # and ends without having heard that the sink has finished it
        if meanwhile == "a batch begins and ends":
            run(group, old)
        old.stop()
        if meanwhile != "nothing":
            with pytest.raises(FencedError, match=r"ran still as pod-1 on .* Nothing was read or written .* it again"):
                new.result()
            new = starting.submit(group.query, "pod-2", old.finished)
        query = new.result()
    run(group, query)
    once_each(group, old, query)
    assert {*group.snapshot().members} == {"pod-2"}


def test_a_query_that_is_started_again_while_its_last_planner_ends_runs_the_batch_again(
    group: Group, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a sink that has failed: Spark has ended the query before it has read the log for the new one."""
    monkeypatch.setattr(processes, "has_ended_query", lambda planner: True)
    old = group.query("a", leaseDuration="60s")
    (end,) = run(group, old)
    group.append(1)
    unfinished = old.batch()
    with ThreadPoolExecutor(1) as starting:
        new = starting.submit(group.query, "a", end, unfinished, leaseDuration="60s")
        wait_until(lambda: "seems to run already" in caplog.text or new.done(), "the new one waits")
        old.stop()
        query = new.result()
    query.run(unfinished)
    run(group, query)
    once_each(group, old, query)


def test_of_a_cloned_machine_the_later_one_goes_on(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the identity of the host, as one that is resumed from a snapshot of its memory has it: it takes the process
    of the other machine for a dead one of its own."""
    first = group.query("a")
    (one,) = run(group, first)
    group.append(1)
    two = first.batch()
    forget_processes(monkeypatch)
    clone = group.query("a", one, two)
    assert clone.planner.owner == "a"
    with pytest.raises(FencedError, match=r"a later process .* has started as a"):
        wait_until(lambda: first.planner.next_batch(one, None) is None, "the first one learns of it")
    assert clone.run(two)
    ends = run(group, clone)
    once_each(group, first, clone)
    clone.stop()
    with pytest.raises(DataLossError, match="is a copy of one that went on"):
        group.query("a", one, two)
    assert group.query("a", ends[-1]).planner.owner == "a", "the checkpoint of the one that goes on"


# --- names ------------------------------------------------------------------------------------------------------


def test_a_query_that_was_killed_in_a_batch_goes_on_under_another_name(group: Group) -> None:
    group.append(3)
    process, end = group.process("pod-1", leaseDuration="60s")
    process.kill()
    process.wait()
    again = group.query("pod-2", None, end, leaseDuration="60s")
    assert again.planner.owner == "pod-2"
    assert {each.owner for each in group.leases().values()} == {"pod-2"}, "without waiting for its own leases"
    assert again.run(end), "the batch is run again"
    again.read(3 * PARTITIONS)
    once_each(group, again)
    assert {*group.snapshot().members} == {"pod-2"}


def test_two_queries_of_one_name_get_two(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    one, other = group.query("job"), group.query("job")
    group.wait_owned(4, 4)
    assert one.planner.owner == "job"
    assert other.planner.owner.startswith("job-")
    assert f"another query of the group is called job: this one is called {other.planner.owner}" in caplog.text
    group.append(2)
    group.read_rest(one, other)
    assert one.planner.address != other.planner.address


# --- a table that is older than the checkpoint -----------------------------------------------------------------


def set_back(group: Group, copy: Path) -> None:
    shutil.rmtree(group.table)
    copy.rename(group.table)


@pytest.fixture
def ends_and_copy(group: Group, tmp_path: Path) -> tuple[Query, Path]:
    """A query that has ended, and a copy of its table that was made while it ran; no partition has moved since."""
    query = group.query("a")
    run(group, query, 2)
    wait_until(lambda: known_batch(group, query) == query.finished.batch, "the table knows")
    copy = tmp_path / "copy"
    shutil.copytree(group.table, copy)
    group.emulator.append("hub", 0, [b"x"] * 3)
    query.read(2 * PARTITIONS + 3)
    query.planner.finish(query.finished)
    run(group, query, 2)
    group.emulator.append("hub", 0, [b"x"] * 3)
    query.read(4 * PARTITIONS + 6)  # of one partition: the others are in the offset as held
    query.planner.finish(query.finished)
    wait_until(lambda: known_batch(group, query) == query.finished.batch, "the table knows")
    return query, copy


def test_a_table_that_was_set_back_is_refused(
    group: Group, ends_and_copy: tuple[Query, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_processes(monkeypatch)  # the copy says that one is running
    query, copy = ends_and_copy
    query.stop()
    set_back(group, copy)
    with pytest.raises(DataLossError, match="the table was set back, and does not know of events up to") as caught:
        group.query("a", query.finished)
    assert "init" in str(caught.value)
    lenient = group.query("a", query.finished, failOnDataLoss=False)
    group.append(1)
    lenient.read(PARTITIONS)
    once_each(group, query, lenient)


@pytest.fixture
def ended(group: Group, ends_and_copy: tuple[Query, Path], monkeypatch: pytest.MonkeyPatch) -> Query:
    """The query, whose table is an older copy that others have written since: no version tells."""
    forget_processes(monkeypatch)
    query, copy = ends_and_copy
    query.stop()
    set_back(group, copy)
    with DeltaStore(str(group.table)) as store:
        committed(store, Join(by=BOB, at_ms=1))
        while store.read().version <= query.finished.table_version:
            committed(store, Heartbeat(by=BOB, at_ms=2))
        committed(store, Leave(by=BOB, at_ms=3))
    return query


def test_a_table_that_was_set_back_is_refused_also_after_others_have_written_it(group: Group, ended: Query) -> None:
    """That it has forgotten a batch tells."""
    with pytest.raises(DataLossError, match="the table was set back, and does not know of events up to"):
        group.query("a", ended.finished)
    for partition in range(PARTITIONS):
        with DeltaStore(str(group.table)) as store:
            back = Position.before(0)
            committed(store, Seek(by=BOB, at_ms=4, partition=str(partition), position=back, force=True))
    again = group.query("a", ended.finished)
    again.read(len(group.everything()))
    assert Counter(again.seen) == group.everything(), "a seek decides where reading continues"


def test_positions_that_did_not_reach_the_table_are_not_read_twice(group: Group, ended: Query) -> None:
    """The table was away when the query ended: it has forgotten nothing that the query had seen in it."""
    known = group.snapshot().queries[ended.finished.lineage].begun
    again = group.query("a", replace(ended.finished, table_begun=known))
    group.append(1)
    again.read(PARTITIONS)
    once_each(group, ended, again)
