"""The schedule of requests for partition states."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from spark_ehbalance.eventhub.poll_schedule import MAX_NEW, PollSchedule

#: Event Hubs' limit of responses per second for all clients together.
QUOTA = 50


def requests(
    partitions: int, members: int = 1, *, seconds: float = 60.0, changed: float = float("inf"), resting: bool = False
) -> list[tuple[float, list[str]]]:
    """(time, partitions) of the requests after the first, made by a query that owns its share of the partitions, waits
    or runs a batch, and detects a change every `changed` seconds."""
    schedule, now, made, last_change = PollSchedule(), 1000.0, [], 1000.0
    everything = [f"{number}" for number in range(partitions)]
    schedule = schedule.answered(everything, now, changed=True)
    schedule, _ = schedule.watch(everything[: -(-partitions // members)], members)
    if resting:
        schedule = schedule.rest()
    while now < 1000.0 + seconds:
        if schedule.due() <= now:
            schedule, chosen = schedule.choose(everything, also_others=False)
            due = now - last_change >= changed
            last_change = now if due else last_change
            schedule = schedule.answered(chosen, now, changed=due)
            made.append((now, chosen))
        now += 0.005
    return made


def gaps(made: list[tuple[float, list[str]]], partition: str) -> list[float]:
    """Seconds between requests for `partition`."""
    return [after - before for before, after in pairwise(now for now, chosen in made if partition in chosen)]


@pytest.mark.parametrize(
    ("partitions", "members"), [(1, 1), (8, 1), (32, 1), (200, 1), (8, 4), (32, 10), (32, 32), (10, 40)]
)
@pytest.mark.parametrize("changed", [0.0, float("inf")])
def test_group_uses_at_most_half_of_the_services_limit(partitions: int, members: int, changed: float) -> None:
    made = requests(partitions, members, changed=changed)
    assert members * sum(len(chosen) for _, chosen in made) <= (60 + 2) * QUOTA / 2 + partitions


@pytest.mark.parametrize(("partitions", "members"), [(8, 1), (100, 1), (32, 4)])
def test_every_partition_is_requested(partitions: int, members: int) -> None:
    made = requests(partitions, members, changed=0.0)
    for number in range(-(-partitions // members)):
        assert max(gaps(made, f"{number}")) <= 2 * max(0.1, partitions / (QUOTA / 2))


def test_requests_slow_down_without_changes_to_two_a_second() -> None:
    made = requests(2, seconds=120)
    late = gaps(made, "0")[-20:]
    assert max(late) <= 0.51
    assert min(late) >= 0.49


def test_at_most_one_request_a_second_while_a_batch_runs() -> None:
    late = gaps(requests(1, resting=True, changed=0.0), "0")
    assert min(late[1:]) >= 1


def test_catching_up_after_a_batch_makes_one_request() -> None:
    """With 8 partitions, the rate limit would delay a second request by a third of a second."""
    schedule = PollSchedule()
    schedule, _ = schedule.watch(["0"], 1)
    schedule = schedule.answered(["0"], 10.0, changed=True)
    schedule, _ = schedule.choose(["0"], also_others=False)
    schedule = schedule.rest()
    assert schedule.due() >= 11.0
    schedule, at_once = schedule.watch(["0"], 1)
    assert not at_once
    assert not schedule.is_urgent
    assert replace(schedule, is_urgent=True).due() < 10.1


@pytest.mark.parametrize("partitions", [8, 16, 24])
def test_two_starting_queries_stay_within_the_services_limit(partitions: int) -> None:
    """Both initially assume that they are alone; the full request includes the list of partitions."""
    everything = [f"{number}" for number in range(partitions)]
    schedule, made = PollSchedule(), partitions + 1
    schedule = schedule.answered(everything, 10.0, changed=True, others=1)
    schedule, at_once = schedule.watch(everything, 1)
    assert at_once
    if schedule.due() < 11.0:
        made += len(schedule.choose(everything, also_others=False)[1])
    assert 2 * made <= QUOTA


def test_partition_taken_over_ignores_the_rate_limit() -> None:
    schedule = PollSchedule()
    everything = [f"{number}" for number in range(10)]
    schedule = schedule.answered(everything, 10.0, changed=True)
    schedule, _ = schedule.watch(everything[:5], 20)
    schedule, chosen = schedule.choose(everything, also_others=False)
    schedule = schedule.answered(chosen, 20.0, changed=True)
    assert schedule.due() > 20.5
    schedule, at_once = schedule.watch(everything[:6], 20)
    assert at_once
    assert schedule.due() <= 20.0
    schedule, _ = schedule.choose(everything, also_others=False)
    schedule, at_once = schedule.watch(everything[:3], 20)
    assert not at_once


def test_added_partitions_are_requested_in_chunks() -> None:
    schedule = PollSchedule()
    schedule = schedule.answered(["0", "1"], 10.0, changed=True)
    schedule, _ = schedule.watch(["0"], 10)
    everything, requested = [f"{number}" for number in range(100)], set[str]()
    for now in (20.0, 21.0, 22.0):
        schedule, chosen = schedule.choose(everything, also_others=False)
        new = {*chosen} - {"0"}
        assert len(new) <= MAX_NEW
        requested |= new
        schedule = schedule.answered([*new], now, changed=True)
        assert (schedule.due() == now) is (len(requested) < 98), "the next piece is due at once"
    assert requested == {*everything[2:]}
