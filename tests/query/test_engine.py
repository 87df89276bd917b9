"""The query engine as a function from inputs to outputs, without a clock, thread, hub or table."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from spark_ehbalance.errors import DataLossError, StoreUnavailableError
from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.changes import Claim, HandOver, Join, Release, RequestHandover, Stall, Steal
from spark_ehbalance.group.commands import Seek
from spark_ehbalance.group.member.engine import MemberEngine
from spark_ehbalance.group.member.protocol import LeaveRequested, StoreFailed
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.model import Lease, Pin
from spark_ehbalance.group.position import Position
from spark_ehbalance.query import protocol
from spark_ehbalance.query.engine import QueryEngine
from spark_ehbalance.query.offsets import EpochPosition, HubReference, StreamOffset
from spark_ehbalance.query.progress_policy import LeaseTableProgress, OffsetProgress
from spark_ehbalance.query.replay import LoggedBatches
from tests.group.member.one import OPERATOR, One
from tests.group.strategies.members import LEASE
from tests.lease_table.store_conformance import ANN, BOB
from tests.raising import raises

START = StreamOffset("ann")


class OneQuery(One):
    """ann's query, which owns all partitions; `states` contains the partition states that the hub reports."""

    def __init__(self, partitions: int = 2, **settings: Any) -> None:
        super().__init__(partitions)
        self.engine = QueryEngine(self.ann, LeaseTableProgress(START, "/leases"), **settings)
        self.states: Mapping[str, PartitionState] = {}
        self.connection = 1.0
        self.hold(**{str(partition): 0 for partition in range(partitions)})

    def hold(self, offset: str | None = None, begin: int = 0, **ends: int) -> None:
        """Set the hub's events: partitions end at these positions, and the newest event has this `offset`."""
        states = {p.strip("_"): PartitionState(begin, end, offset, None) for p, end in ends.items()}
        self.states = {**self.states, **states}

    @property
    def hub(self) -> protocol.HubReport:
        return protocol.HubReport(self.states, None, self.connection)

    def notify(self, input: protocol.Input) -> list[protocol.Output]:
        return self.engine.handle(input, self.clocks)

    def request_batch(self, start: StreamOffset = START, limit: int | None = None) -> list[protocol.Output]:
        return self.notify(protocol.BatchRequested(start, limit, self.hub))

    def planned(self, outputs: list[protocol.Output]) -> protocol.BatchPlanned:
        """The planned batch; the engine may poll for newer events but makes no other request."""
        if outputs == [protocol.CatchUp()]:
            outputs = self.notify(protocol.HubReported(self.hub))
        (planned,) = outputs
        assert isinstance(planned, protocol.BatchPlanned)
        return planned

    def batch(self, start: StreamOffset = START, limit: int | None = None) -> StreamOffset:
        """Plan the next batch and return its end."""
        return self.planned(self.request_batch(start, limit)).end

    def events_found(self, *found: bool | None) -> list[protocol.Output]:
        """Report whether the hub has the event before the position in partition 0; None means unknown."""
        answers = [{} if answer is None else {"0": answer} for answer in found]
        return self.notify(protocol.EventsFound(answers, self.hub))

    def read(self, end: StreamOffset) -> list[tuple[str, int, int]]:
        """The batch's ranges, provided that the engine needs no lookup."""
        return self.ranges(self.notify(protocol.RangesRequested(end)))

    def ranges(self, outputs: list[protocol.Output]) -> list[tuple[str, int, int]]:
        (read,) = outputs
        assert isinstance(read, protocol.RangesPlanned)
        return [(range_.partition, range_.start, range_.end) for range_ in read.ranges]


def spans(end: StreamOffset) -> dict[str, tuple[int, int]]:
    return {p: (range_.start, range_.end) for p, range_ in end.ranges.items()}


def test_batch_runs_from_request_to_recorded_progress() -> None:
    one = OneQuery()
    one.hold(_0=5, _1=3)
    end = one.batch()
    assert spans(end) == {"0": (0, 5), "1": (0, 3)}
    assert one.engine.in_batch
    assert one.read(end) == [("0", 0, 5), ("1", 0, 3)]
    one.notify(protocol.BatchFinished(end))
    assert not one.engine.in_batch
    assert one.engine.loads.events == 8
    assert one.ann.query.progress == {"0": Progress(1, Position(4)), "1": Progress(1, Position(2))}
    one.notify(protocol.BatchFinished(replace(end)))
    assert one.engine.loads.events == 8, "Spark repeats it with each request"
    one.hold(_0=6)
    later = one.batch(end)
    assert (spans(later), later.checkpoints) == ({"0": (5, 6)}, {"0": 0, "1": 0}), "before the table has the progress"
    one.turn()
    later = one.batch(end)
    assert (spans(later), later.checkpoints) == ({"0": (5, 6)}, {}), "and after that"
    one.notify(protocol.BatchFinished(replace(end)))
    assert one.engine.in_batch, "that is not the end of the later batch"


def test_engine_polls_for_newer_events_once_after_a_batch() -> None:
    one = OneQuery()
    assert one.request_batch() == [protocol.CatchUp()]
    planned = one.planned(one.notify(protocol.HubReported(one.hub)))
    assert planned.end is START
    assert planned.until == one.now + 5
    (again,) = one.request_batch()
    assert isinstance(again, protocol.BatchPlanned), "nothing has ended since"


def test_position_moved_to_retained_events_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    one = OneQuery(partitions=1, fail_on_data_loss=False)
    one.hold(_0=4, begin=4)
    assert one.request_batch() == [protocol.Refresh(("0",))]
    one.notify(protocol.HubReported(one.hub))
    one.notify(protocol.HubReported(one.hub))
    assert one.ann.query.resets == {"0": Progress(1, Position.before(4))}
    one.hold(_0=6, begin=4)
    assert spans(one.batch()) == {"0": (4, 6)}
    assert caplog.text.count("failOnDataLoss=false: next=4") == 1


def test_hub_recreated_during_planning_stops_the_query() -> None:
    """Before a position beyond its end counts as an ordinary loss, and is reset."""
    one = OneQuery(partitions=1, fail_on_data_loss=False)
    one.engine.policy = LeaseTableProgress(replace(START, hub=HubReference("hub", created_ms=7)), "/leases")
    one.hold(_0=4, begin=4)
    assert one.request_batch() == [protocol.Refresh(("0",))]
    with pytest.raises(DataLossError, match="EHB_HUB_RECREATED"):
        one.notify(protocol.HubReported(replace(one.hub, created_ms=9)))
    assert one.ann.query.resets == {}


def test_stalled_partition_is_probed_again_after_a_pause() -> None:
    one = OneQuery(partitions=1)
    one.hold(_0=9)
    one.others(Stall(by=ANN, at_ms=0, partition="0", epoch=1))
    one.turn(balance=True)
    one.turn(balance=True)
    assert one.request_batch() == [probe := protocol.Probe({"0": 0}, {"0": 3}, waits=True)]
    one.notify(protocol.Probed({"0": 0}, {}))
    for wait, due in ((59, False), (2, True)):
        one.now += wait
        one.turn()
        assert (probe in one.request_batch()) is due


def test_offset_contains_progress_made_under_a_lapsed_lease() -> None:
    """A query killed before it could commit that progress resumes there if no other member has claimed the lease."""
    one = OneQuery(partitions=1)
    one.hold(_0=5)
    one.notify(protocol.BatchFinished(first := one.batch()))
    one.others(Join(by=BOB, at_ms=0))
    one.add(Lease("1", owner=BOB.id, epoch=1, checkpoint=Position(-1)))
    one.others(RequestHandover(by=ANN, at_ms=0, partition="1", epoch=1, to=ANN.id, timeout_ms=30_000))
    one.now += LEASE - 3
    for look in range(4):
        one.begin()
        one.notify(StoreFailed(writing=True))
        one.now += 1
        if look == 1:
            one.others(HandOver(by=BOB, at_ms=0, partition="1", epoch=1))
    one.hold(_1=3)
    end = one.batch(first)
    assert spans(end) == {"1": (0, 3)}
    assert end.other_positions == {"0": EpochPosition(1, 5)}
    assert end.checkpoints == {"0": 0}, "for a group without its lease table"
    one.others(Steal(by=BOB, at_ms=0, partition="0", epoch=1))
    one.begin()
    one.hold(_1=4)
    assert one.batch(end).other_positions == {}, "bob reads on from the checkpoint"


def test_batch_survives_a_seek_unless_another_member_then_steals_the_partition() -> None:
    """The former owner might not have read its whole range, so it writes none of it and reports the loss."""
    one = OneQuery()
    one.hold(_0=5, _1=5)
    end = one.batch()
    one.others(Seek(by=OPERATOR, at_ms=0, partition="1", position=Position.before(2), force=True))
    one.turn()
    assert one.read(end) == [("0", 0, 5), ("1", 0, 5)]
    assert one.engine.batch is not None
    assert one.engine.batch.lost(one.table.leases) == ([], [])
    one.others(Join(by=BOB, at_ms=0), Steal(by=BOB, at_ms=0, partition="1", epoch=2))
    lost, (warning,) = one.engine.batch.lost(one.table.leases)
    assert lost == ["1"]
    assert warning.endswith("partition=1 from=0 to=4")


# --- a geo-replicated hub --------------------------------------------------------------------------------------


def geo() -> tuple[OneQuery, StreamOffset]:
    """A query that has finished four of nine events; its offset names the events at the ends of the batch."""
    one = OneQuery(partitions=1)
    one.hold("0-9-9", _0=9)
    assert one.request_batch(limit=4) == [protocol.FindOffsets({"0": 3}, {"0": 1})]
    planned = one.planned(one.notify(protocol.OffsetsFound({"0": "0-3-3"}, one.hub)))
    one.notify(protocol.BatchFinished(planned.end))
    return one, planned.end


def test_reading_continues_only_after_the_previous_event_was_found() -> None:
    one, end = geo()
    looked_for = protocol.FindEvents([{"0": Position(3, "0-3-3")}], {"0": 1})
    assert one.request_batch(end) == [looked_for]
    assert spans(one.planned(one.events_found(True)).end) == {"0": (4, 9)}
    assert one.request_batch(end) != [looked_for], "once per connection"
    one.connection = 2.0
    assert one.request_batch(end) == [looked_for]
    for begin in (4, 5):
        one.hold("0-9-9", begin=begin, _0=9)
        assert looked_for not in one.request_batch(end), "it is not retained"


def test_promotion_during_planning_repeats_the_lookup_of_the_previous_event() -> None:
    one, end = geo()
    looked_for = protocol.FindEvents([{"0": Position(3, "0-3-3")}], {"0": 1})
    assert one.request_batch(end) == [looked_for]
    one.connection = 2.0
    assert one.events_found(True) == [looked_for]
    assert one.events_found(True) == [protocol.CatchUp()]
    one.connection = 3.0
    assert one.notify(protocol.HubReported(one.hub)) == [looked_for]

    assert one.request_batch(end, limit=4) == [looked_for]
    assert one.events_found(True) == [protocol.FindOffsets({"0": 7}, {"0": 1})]
    one.connection = 4.0
    assert one.notify(protocol.OffsetsFound({"0": "1-7-7"}, one.hub)) == [looked_for]


def test_event_missing_from_the_hub_is_a_loss() -> None:
    one, end = geo()
    one.request_batch(end)
    with pytest.raises(DataLossError, match="EHB_POSITION_UNKNOWN"):
        one.events_found(False)
    for newest, known in (("1-3-3", 4), ("0-1-3", 4), ("0-2-2", 3)):  # another event, or an earlier one
        one.request_batch(end)
        one.hold(newest, _0=known)
        with pytest.raises(DataLossError, match="EHB_POSITION_UNKNOWN"):
            one.events_found(None)


def test_partition_is_omitted_while_its_events_are_unknown() -> None:
    one, end = geo()
    for newest, known in (("0-9-9", 9), ("0-3-3", 4)):
        one.request_batch(end)
        one.hold(newest, _0=known)
        planned = one.planned(one.events_found(None))
        assert (planned.end, planned.ranges) == (end, {})


def test_probe_that_ends_during_an_event_lookup_counts_for_the_next_batch() -> None:
    """The event before the probe's position was not looked up."""
    one = OneQuery(partitions=2)
    for end in ("0", "1"):
        one.hold("0-9-9", **{f"_{end}": 9})
    one.request_batch(limit=8)
    planned = one.planned(one.notify(protocol.OffsetsFound({"0": "0-3-3", "1": "0-3-3"}, one.hub)))
    one.notify(protocol.BatchFinished(planned.end))
    one.turn()
    one.others(Stall(by=ANN, at_ms=0, partition="1", epoch=1))
    one.turn(balance=True)
    one.turn(balance=True)
    assert one.ann.owned["1"].stall_count
    outputs = one.request_batch(planned.end)
    (probe,) = [output for output in outputs if isinstance(output, protocol.Probe)]
    (found,) = [output for output in outputs if isinstance(output, protocol.FindEvents)]
    assert (probe.positions, probe.waits, found.positions[0].keys()) == ({"1": 4}, False, {"0"})
    one.notify(protocol.Probed({"1": 4}, {"1": 9}))
    assert spans(one.planned(one.events_found(True)).end) == {"0": (4, 9)}


def test_logged_batch_is_reread_only_if_the_hub_has_its_events() -> None:
    one, end = geo()
    one.turn()
    one.request_batch(end)
    logged = one.planned(one.events_found(True)).end
    one.engine = QueryEngine(one.ann, LeaseTableProgress(START, "/leases"))
    lookup = protocol.FindEvents(({"0": Position(3, "0-3-3")}, {"0": Position(8, "0-9-9")}), {"0": 1})
    for lost in ((False, True), (True, False)):
        assert one.notify(protocol.RangesRequested(logged)) == [lookup]
        with pytest.raises(DataLossError, match="EHB_POSITION_UNKNOWN"):
            one.events_found(*lost)
    one.notify(protocol.RangesRequested(logged))
    assert one.ranges(one.events_found(True, True)) == [("0", 4, 9)]

    one.others(Seek(by=OPERATOR, at_ms=0, partition="0", position=Position.before(2), force=True))
    one.turn()
    one.notify(protocol.RangesRequested(logged))
    assert one.ranges(one.events_found(False, True)) == [], "the next batch reads on from there"


# --- Trigger.AvailableNow --------------------------------------------------------------------------------------


def test_fixed_ends_do_not_move() -> None:
    one = OneQuery()
    one.hold(_0=5, _1=3)
    one.notify(protocol.EndsFixed(one.hub))
    one.hold(_0=9, _1=9)
    one.notify(protocol.EndsFixed(one.hub))
    assert spans(one.batch()) == {"0": (0, 5), "1": (0, 3)}


def available_now() -> tuple[OneQuery, StreamOffset]:
    """A query with `Trigger.AvailableNow` that has finished four of ten events."""
    one = OneQuery()
    one.hold(_0=5, _1=5)
    one.notify(protocol.EndsFixed(one.hub))
    end = one.batch(limit=4)
    one.notify(protocol.BatchFinished(end))
    return one, end


def test_available_now_reads_partitions_claimed_later() -> None:
    one = OneQuery()
    one.hold(_0=5, _1=5)
    states, one.states = one.states, {"0": one.states["0"]}
    one.notify(protocol.EndsFixed(one.hub))
    end = one.batch()
    assert spans(end) == {"0": (0, 5)}
    one.notify(protocol.BatchFinished(end))
    planned = one.planned(one.request_batch(end))
    assert (planned.end, planned.unread) == (end, {"1"})
    one.states = states
    one.notify(protocol.EndsFixed(one.hub))
    assert spans(one.batch(end)) == {"1": (0, 5)}


@pytest.mark.parametrize("leaves", [True, False])
def test_partitions_of_a_logged_batch_are_kept_until_it_is_replayed(leaves: bool) -> None:
    """A sink that skips known batch numbers loses a partition that only a later replay contains."""
    one, end = logged_batch()
    if leaves:
        one.notify(LeaveRequested())
    else:
        one.request("1")
    one.turn()
    assert one.ann.owned.keys() == {"0", "1"}
    assert one.read(end) == [("0", 0, 5), ("1", 0, 5)]
    one.notify(protocol.BatchFinished(end))
    one.end(one.begin())
    assert "1" not in one.ann.owned


def test_logged_batch_is_not_replayed_while_its_owners_are_unknown() -> None:
    one, end = logged_batch()
    one.now += 2 * LEASE
    with raises(StoreUnavailableError, "EHB_LEASE_TABLE_UNAVAILABLE"):
        one.read(end)
    one.turn()
    assert one.read(end) == [("0", 0, 5), ("1", 0, 5)]


def test_logged_batch_is_not_replayed_without_a_partition_that_nobody_has_claimed() -> None:
    """In a blob store, the claim of one partition can fail. If the batch finished without it, the next process would
    count its range as finished."""
    one, end = logged_batch()
    one.others(Release(by=one.ann.author, at_ms=0, partition="1", epoch=1))
    one.end(one.begin())
    assert one.ann.owned.keys() == {"0"}
    with raises(StoreUnavailableError, "EHB_LEASE_TABLE_UNAVAILABLE"):
        one.read(end)
    one.others(Join(by=BOB, at_ms=0), Claim(by=BOB, at_ms=0, partition="1", epoch=1))
    one.turn()
    assert one.read(end) == [("0", 0, 5)]


@pytest.mark.parametrize("meanwhile", ["sought", "claimed", "claimed and released"])
def test_logged_batch_is_not_replayed_before_its_partitions_are_claimed_again(meanwhile: str) -> None:
    """A seek, or another process of the query, can precede the claims of the restarted process."""
    one, end = logged_batch()
    logged, ann = LoggedBatches(START, end), one.ann.author
    one.ann = MemberEngine(
        replace(ann, incarnation="ann-2"),
        one.ann.settings,
        random.Random(0),
        query=logged.query_state({}),
        resume=logged.resumed(),
    )
    one.engine = QueryEngine(one.ann, LeaseTableProgress(START, "/leases"))
    join, lease = one.begin(), one.table.leases["1"]
    if meanwhile == "sought":
        one.others(Seek(by=OPERATOR, at_ms=0, partition="1", position=Position(1), force=True))
    else:
        one.others(Claim(by=ann, at_ms=0, partition="1", epoch=lease.epoch, owned_since_ms=lease.owned_since_ms))
    if meanwhile == "claimed and released":
        one.others(Release(by=ann, at_ms=0, partition="1", epoch=lease.epoch + 1))
    one.end(join)
    assert [refusal.transition.partition for refusal in one.refused if isinstance(refusal.transition, Claim)] == ["1"]
    with raises(StoreUnavailableError, "EHB_LEASE_TABLE_UNAVAILABLE"):
        one.read(end)
    one.turn()
    assert one.read(end) == [("0", 0, 5), ("1", 0, 5)]


def test_replay_counts_towards_the_average_duration_of_a_batch() -> None:
    one, end = logged_batch()
    one.read(end)
    one.now += 7
    one.notify(protocol.BatchFinished(end))
    assert one.engine.loads.member_load().batch_seconds == 7


def logged_batch() -> tuple[OneQuery, StreamOffset]:
    """A query whose earlier process logged a batch but did not finish it."""
    one = OneQuery()
    one.hold(_0=5, _1=5)
    end = one.batch()
    one.ann.finish_batch({})
    one.ann.query = replace(one.ann.query, to_replay=frozenset(end.ranges))
    one.engine = QueryEngine(one.ann, LeaseTableProgress(START, "/leases"))
    return one, end


def test_progress_is_kept_while_a_batch_repeats_a_range_whose_state_is_unknown() -> None:
    """Without a lease table, that range still has the epoch of the process that logged it."""
    one = OneQuery()
    one.engine.policy = OffsetProgress(START)
    one.hold(_0=5, _1=5)
    earlier = {p: OffsetRange(p, 0, 0, 5) for p in "01"}  # read again in epoch 1
    one.ann.finish_batch({p: Progress(1, Position(4)) for p in "01"})
    one.states = {"1": PartitionState(0, 9, None, None)}
    end = one.batch(StreamOffset("ann", earlier))
    assert spans(end) == {"0": (5, 5), "1": (5, 9)}
    one.notify(protocol.BatchFinished(end))
    assert one.ann.query.progress == {"0": Progress(1, Position(4)), "1": Progress(1, Position(8))}


@pytest.mark.parametrize("taken_back", [False, True])
def test_partitions_stolen_before_the_batch_is_read_are_left_to_their_new_owner(taken_back: bool) -> None:
    one = OneQuery()
    one.hold(_0=5, _1=5)
    end = one.batch()
    one.others(Join(by=BOB, at_ms=0), Steal(by=BOB, at_ms=0, partition="1", epoch=1))
    one.turn()
    if taken_back:
        one.others(Steal(by=one.ann.author, at_ms=0, partition="1", epoch=2))
        one.turn()
    assert one.read(end) == [("0", 0, 5)]
    one.notify(protocol.BatchFinished(end))
    assert {p: progress.position.next for p, progress in one.ann.query.progress.items()} == {"0": 5}


def test_without_lease_table_a_planned_batch_is_read_whole_even_after_another_claim() -> None:
    """Its offset contains the whole batch, such as one planned before a suspension."""
    one = OneQuery()
    one.engine.policy = OffsetProgress(START)
    one.hold(_0=5, _1=5)
    end = one.batch()
    one.others(Claim(by=ANN, at_ms=0, partition="1", epoch=1))
    one.turn()
    assert one.read(end) == [("0", 0, 5), ("1", 0, 5)]


def test_available_now_does_not_wait_for_events_it_will_not_read() -> None:
    """Events lost in a promotion, partitions beyond the member's limit, and all partitions if the member is leaving."""
    one = OneQuery(partitions=1)
    one.hold(_0=9)
    one.notify(protocol.EndsFixed(one.hub))
    one.hold(_0=5)
    one.notify(protocol.BatchFinished(end := one.batch()))
    assert one.planned(one.request_batch(end)).unread == set()

    one, end = available_now()
    one.ann.settings = replace(one.ann.settings, max_owned=1)
    one.others(Release(by=one.ann.author, at_ms=0, partition="1", epoch=1))
    one.turn()
    one.notify(protocol.BatchFinished(end := one.batch(end)))
    assert spans(end) == {"0": (2, 5)}
    assert one.planned(one.request_batch(end)).unread == set()

    one, end = available_now()
    one.ann.handle(LeaveRequested(), one.clocks)
    assert one.planned(one.request_batch(end)).unread == set()


@pytest.mark.parametrize(
    ("max_owned", "lease", "waits"),
    [
        (None, {}, True),
        (2, {}, True),
        (None, {"pin": Pin("ann", "operator")}, True),
        (None, {"pin": Pin("abe", "operator")}, False),
        (None, {"pin": Pin("zoe", "operator")}, False),
        (None, {"stall_count": 1}, False),
        (None, {"checkpoint": Position.before(6)}, False),
    ],
)
def test_available_now_waits_for_free_partitions(max_owned: int | None, lease: dict[str, Any], waits: bool) -> None:
    one, end = available_now()
    one.ann.settings = replace(one.ann.settings, max_owned=max_owned)
    one.turn()
    one.others(Release(by=one.ann.author, at_ms=0, partition="1", epoch=1))
    one.replace_table(replace(one.table, leases={**one.table.leases, "1": replace(one.table.leases["1"], **lease)}))
    one.turn()
    one.notify(protocol.BatchFinished(end := one.batch(end)))
    assert one.planned(one.request_batch(end)).unread == ({"1"} if waits else set())


def test_ends_stay_fixed_when_the_process_was_suspended() -> None:
    one, end = geo()
    one.now += 2 * LEASE
    one.notify(protocol.EndsFixed(one.hub))
    one.turn()
    one.request_batch(end, limit=3)
    one.events_found(True)
    one.now += 2 * LEASE
    planned = one.planned(one.notify(protocol.OffsetsFound({"0": "0-6-6"}, one.hub)))
    assert (planned.end, planned.unread) == (end, {"0"})
