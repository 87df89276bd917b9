"""When the hub is asked, and about what."""

from __future__ import annotations

from itertools import pairwise

import pytest

from spark_ehbalance.hub.poll_schedule import PollSchedule

#: Answers a second of Event Hubs, for everybody together.
QUOTA = 50


def asked(
    partitions: int, members: int = 1, *, seconds: float = 60.0, changed: float = float("inf"), resting: bool = False
) -> list[tuple[float, list[str]]]:
    """When which questions are put by a query that owns its share of the partitions, waits (or is at a batch), and has
    something new every `news` seconds; without those of its start."""
    schedule, now, looks, last_news = PollSchedule(), 1000.0, [], 1000.0
    everything = [f"{number}" for number in range(partitions)]
    schedule.choose(everything, everything=True, also_others=False)
    schedule.answered(everything, now, changed=True)
    schedule.watch(everything[: -(-partitions // members)], members)
    if resting:
        schedule.rest()
    while now < 1000.0 + seconds:
        if schedule.due() <= now:
            chosen = schedule.choose(everything, everything=False, also_others=False)
            new = now - last_news >= changed
            last_news = now if new else last_news
            schedule.answered(chosen, now, changed=new)
            looks.append((now, chosen))
        now += 0.005
    return looks


def gaps(looks: list[tuple[float, list[str]]], partition: str) -> list[float]:
    """Seconds between two questions about `partition`."""
    return [after - before for before, after in pairwise(now for now, chosen in looks if partition in chosen)]


@pytest.mark.parametrize(
    ("partitions", "members"), [(1, 1), (8, 1), (32, 1), (200, 1), (8, 4), (32, 10), (32, 32), (10, 40)]
)
@pytest.mark.parametrize("changed", [0.0, float("inf")])
def test_a_group_stays_within_half_of_what_event_hubs_answers(partitions: int, members: int, changed: float) -> None:
    looks = asked(partitions, members, changed=changed)
    assert members * sum(len(chosen) for _, chosen in looks) <= (60 + 2) * QUOTA / 2 + partitions


@pytest.mark.parametrize(("partitions", "members"), [(8, 1), (100, 1), (32, 4)])
def test_each_partition_has_its_turn(partitions: int, members: int) -> None:
    looks = asked(partitions, members, changed=0.0)
    for number in range(-(-partitions // members)):
        assert max(gaps(looks, f"{number}")) <= 2 * max(0.1, partitions / (QUOTA / 2))


def test_a_query_with_news_is_told_of_the_next_within_a_tenth_of_a_second() -> None:
    assert max(gaps(asked(2, changed=0.0), "0")) <= 0.11


def test_one_that_waits_for_long_asks_less_but_twice_a_second() -> None:
    looks = asked(2, seconds=120)
    late = gaps(looks, "0")[-20:]
    assert max(late) <= 0.51
    assert min(late) >= 0.49


def test_after_news_it_asks_often_again() -> None:
    times = [now for now, _ in asked(1, changed=20)]
    assert max(after - before for before, after in pairwise(times) if 1010 <= before < 1020) > 0.45
    assert max(after - before for before, after in pairwise(times) if 1020.5 <= before < 1022) <= 0.11


def test_hardly_while_a_batch_runs() -> None:
    late = gaps(asked(1, resting=True, changed=0.0), "0")
    assert min(late[1:]) >= 1


def test_who_comes_back_from_a_batch_asks_at_once() -> None:
    schedule = PollSchedule()
    schedule.watch(["0"], 1)
    schedule.answered(["0"], 10.0, changed=True)
    schedule.choose(["0"], everything=False, also_others=False)
    schedule.rest()
    assert schedule.due() >= 11.0
    assert schedule.watch(["0"], 1)
    assert schedule.due() < 10.1


def test_what_has_come_from_another_member_waits_for_nothing() -> None:
    schedule = PollSchedule()
    everything = [f"{number}" for number in range(10)]
    schedule.answered(everything, 10.0, changed=True)
    schedule.watch(everything[:5], 20)
    schedule.answered(schedule.choose(everything, everything=False, also_others=False), 20.0, changed=True)
    assert schedule.due() > 20.5
    assert schedule.watch(everything[:6], 20)
    assert schedule.due() <= 20.0
    schedule.choose(everything, everything=False, also_others=False)
    assert not schedule.watch(everything[:3], 20)


def test_partitions_that_were_added_are_asked_about_all_together() -> None:
    schedule = PollSchedule()
    schedule.answered(["0", "1"], 10.0, changed=True)
    schedule.watch(["0"], 10)
    everything = [f"{number}" for number in range(100)]
    chosen = schedule.choose(everything, everything=False, also_others=True)
    assert {*everything[2:]} <= {*chosen}


def test_those_that_others_own_are_asked_about_now_and_then() -> None:
    schedule = PollSchedule()
    schedule.answered(["0"], 10.0, changed=True)
    schedule.answered(["1"], 9.0, changed=True)
    schedule.watch(["0"], 1)
    assert schedule.choose(["0", "1"], everything=False, also_others=False) == ["0"]
    assert schedule.choose(["0", "1"], everything=False, also_others=True) == ["1", "0"]
    assert schedule.choose(["0", "1"], everything=True, also_others=False) == ["0", "1"]
