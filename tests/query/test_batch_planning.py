"""Batch planning as a pure function of its inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_ehbalance.errors import DataLossError
from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.eventhub.ranges import OffsetRange
from spark_ehbalance.group.member.membership import OwnedLease
from spark_ehbalance.group.member.query_state import Progress
from spark_ehbalance.group.position import Position
from spark_ehbalance.query.batch_planning import BatchPlan, PlanInputs, Request, omitted_partitions, plan_batch
from spark_ehbalance.query.tasks import EVENTS_PER_TASK
from tests.raising import raises


def owned_lease(next: int = 0, epoch: int = 1, since_ms: int = 0, seek_epoch: int = 0) -> OwnedLease:
    """An owned lease whose next sequence number is `next`."""
    return OwnedLease(epoch, Position.before(next), renewed=0.0, lasts=30.0, since_ms=since_ms, seek_epoch=seek_epoch)


def events(begin: int, end: int) -> PartitionState:
    return PartitionState(begin, end, None, None)


def finished(next: int, epoch: int = 1) -> Progress:
    return Progress(epoch, Position.before(next))


def planned(inputs: PlanInputs) -> BatchPlan:
    plan = plan_batch(inputs)
    assert isinstance(plan, BatchPlan)
    return plan


def spans(inputs: PlanInputs) -> dict[str, tuple[int, int]]:
    return {partition: (range_.start, range_.end) for partition, range_ in planned(inputs).ranges.items()}


# --- where a batch starts and ends -----------------------------------------------------------------------------


def test_owned_partitions_are_read_from_checkpoint_to_newest_event() -> None:
    states = {"0": events(0, 10), "1": events(0, 9), "not owned": events(0, 5)}
    inputs = PlanInputs({"0": owned_lease(4, epoch=7), "1": owned_lease(9), "not known": owned_lease()}, states)
    assert planned(inputs) == BatchPlan({"0": OffsetRange("0", 7, 4, 10), "1": OffsetRange("1", 1, 9, 9)})


@pytest.mark.parametrize(("checkpoint", "epoch", "start"), [(4, 2, 6), (2, 3, 2), (8, 3, 8), (4, 1, 4)])
def test_uncheckpointed_progress_counts_only_under_the_current_epoch(checkpoint: int, epoch: int, start: int) -> None:
    """Under an earlier epoch, another member has read on since, or an operator has set the position."""
    inputs = PlanInputs({"0": owned_lease(checkpoint, epoch)}, {"0": events(0, 10)}, {"0": finished(6, epoch=2)})
    assert spans(inputs) == {"0": (start, 10)}


def test_fixed_ends_limit_the_batch_to_their_partitions_and_positions() -> None:
    """`Trigger.AvailableNow`."""
    holdings = {"0": owned_lease(3), "1": owned_lease(5), "2": owned_lease(0), "3": owned_lease(4)}
    inputs = PlanInputs(holdings, dict.fromkeys(holdings, events(0, 10)), fixed_ends={"0": 7, "1": 5}, batch_ended=True)
    assert spans(inputs) == {"0": (3, 7), "1": (5, 5), "2": (0, 0), "3": (4, 4)}


@pytest.mark.parametrize("before", ["0-3-3", None])
@pytest.mark.parametrize(("limit", "last"), [(None, "0-9-9"), (2, None)])
def test_range_contains_the_known_offsets_of_its_ends(before: str | None, limit: int | None, last: str | None) -> None:
    owned = replace(owned_lease(), checkpoint=Position(3, before))
    range_ = planned(PlanInputs({"0": owned}, {"0": PartitionState(0, 10, "0-9-9", None)}, limit=limit)).ranges["0"]
    assert (range_.start_offset, range_.end_offset) == (before, last)


def test_stalled_partition_is_read_up_to_the_probes_last_event() -> None:
    holdings = {"0": owned_lease(3), "1": owned_lease(3), "2": owned_lease(3)}
    inputs = PlanInputs(holdings, dict.fromkeys(holdings, events(0, 10)), readable={"0": 3, "1": 5, "2": 99})
    assert spans(inputs) == {"0": (3, 3), "1": (3, 5), "2": (3, 10)}
    assert spans(replace(inputs, fixed_ends={"0": 4, "1": 4, "2": 4})) == {"0": (3, 3), "1": (3, 4), "2": (3, 4)}
    with raises(DataLossError, "EHB_EVENTS_LOST", partition="0"):
        plan_batch(replace(inputs, states={"0": events(5, 10)}, refreshed=True))


def test_omitted_partitions_are_reported_with_a_reason() -> None:
    holdings = {p: owned_lease(3) for p in ("read", "done", "limit", "position", "state")}
    states = dict.fromkeys(holdings.keys() - {"state"}, events(0, 10)) | {"done": events(0, 3)}
    ranges = {p: OffsetRange(p, 1, 3, 10 if p == "read" else 3) for p in holdings if p not in ("position", "state")}
    unknown = {"position": "position", "state": "state"}
    assert omitted_partitions(ranges, holdings, states, available_now=False) == {"limit": "limit", **unknown}
    assert omitted_partitions(ranges, holdings, states, available_now=True) == unknown


# --- when the hub is polled before planning --------------------------------------------------------------------


def test_hub_is_polled_for_newer_events_after_a_batch() -> None:
    inputs = PlanInputs({"0": owned_lease(1)}, {"0": events(0, 1)}, batch_ended=True)
    assert plan_batch(inputs) is Request.CATCH_UP
    assert spans(inputs.after(Request.CATCH_UP, {"0": events(0, 4)})) == {"0": (1, 4)}
    assert spans(replace(inputs, batch_ended=False)) == {"0": (1, 1)}, "not at every trigger"


@pytest.mark.parametrize(
    ("backlog", "limit", "enough"),
    [
        (EVENTS_PER_TASK, None, True),
        (EVENTS_PER_TASK - 1, None, False),
        (5, 5, True),
        (5, 6, False),
        (EVENTS_PER_TASK, 2 * EVENTS_PER_TASK, True),
    ],
)
def test_backlog_that_fills_a_batch_is_read_without_polling_the_hub(
    backlog: int, limit: int | None, enough: bool
) -> None:
    inputs = PlanInputs({"0": owned_lease(10)}, {"0": events(0, 10 + backlog)}, limit=limit, batch_ended=True)
    assert (plan_batch(inputs) is not Request.CATCH_UP) is enough


def test_position_beyond_the_last_known_event_is_a_loss_only_once_the_hub_confirms_it() -> None:
    """Another member might have read events that this member does not know yet."""
    inputs = PlanInputs({"0": owned_lease(10)}, {"0": events(0, 0)}, batch_ended=True)
    assert plan_batch(inputs) is Request.REFRESH
    inputs = inputs.after(Request.REFRESH, {"0": events(0, 12)})
    assert plan_batch(inputs) is Request.CATCH_UP
    assert spans(inputs.after(Request.CATCH_UP, inputs.states)) == {"0": (10, 12)}


@pytest.mark.parametrize("fails", [True, False])
def test_hub_requests_are_not_repeated(fails: bool) -> None:
    requests, states = list[Request](), [{"0": events(20, 30)}, {"0": events(40, 50)}, {"0": events(60, 60)}]
    inputs = PlanInputs({"0": owned_lease(10)}, {"0": events(0, 10)}, fail_on_data_loss=False, batch_ended=True)
    while isinstance(plan := plan_batch(inputs), Request):
        requests.append(plan)
        inputs = inputs.after(plan, states.pop(0) if fails else {"0": events(0, 11)})
    assert requests == ([Request.CATCH_UP, Request.REFRESH] if fails else [Request.CATCH_UP])


# --- events that are gone --------------------------------------------------------------------------------------

AGED_OUT = (events(15, 20), "they aged out, and the first retained event is 15")
RECREATED = (events(0, 5), "the event hub was recreated, and its last event is 4")


@pytest.mark.parametrize(("state", "why"), [AGED_OUT, RECREATED])
def test_lost_events_raise_an_error(state: PartitionState, why: str) -> None:
    with raises(DataLossError, "EHB_EVENTS_LOST", partition="3", position=10, reason=why):
        plan_batch(PlanInputs({"3": owned_lease(10)}, {"3": state}, refreshed=True))


@pytest.mark.parametrize(("state", "why"), [AGED_OUT, RECREATED])
def test_without_fail_on_data_loss_lost_events_reset_the_position(state: PartitionState, why: str) -> None:
    lost = replace(owned_lease(epoch=4), checkpoint=Position(9, "0-9-9"))
    holdings = {"2": owned_lease(1, epoch=4), "3": lost}
    inputs = PlanInputs(holdings, {"2": events(0, 2), "3": state}, fail_on_data_loss=False, refreshed=True)
    plan = planned(inputs)
    assert plan.ranges == {"2": OffsetRange("2", 4, 1, 2), "3": OffsetRange("3", 4, state.begin, state.end)}
    assert plan.resets == {"3": finished(state.begin, epoch=4)}
    (warning,) = plan.warnings
    assert warning.startswith(f"Partition 3: events from sequence number 10 on are gone: {why}. ")
    again = planned(replace(inputs, progress=plan.resets))
    assert (again.ranges, again.resets, again.warnings) == (plan.ranges, {}, ()), "once it is remembered that is all"
