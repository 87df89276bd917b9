"""When the hub is asked, and about what."""

from __future__ import annotations

from itertools import pairwise

import pytest

from spark_ehbalance.hub.poll_schedule import Questions

#: Answers a second of Event Hubs, for everybody together.
QUOTA = 50


def asked(
    partitions: int, members: int = 1, *, seconds: float = 60.0, news: float = float("inf"), resting: bool = False
) -> list[tuple[float, list[str]]]:
    """When which questions are put by a query that owns its share of the partitions, waits (or is at a batch), and has
    something new every `news` seconds; without those of its start."""
    questions, now, looks, last_news = Questions(), 1000.0, [], 1000.0
    everything = [f"{number}" for number in range(partitions)]
    questions.choose(everything, everything=True, also_others=False)
    questions.answered(everything, now, news=True)
    questions.watch(everything[: -(-partitions // members)], members)
    if resting:
        questions.rest()
    while now < 1000.0 + seconds:
        if questions.due() <= now:
            chosen = questions.choose(everything, everything=False, also_others=False)
            new = now - last_news >= news
            last_news = now if new else last_news
            questions.answered(chosen, now, news=new)
            looks.append((now, chosen))
        now += 0.005
    return looks


def gaps(looks: list[tuple[float, list[str]]], partition: str) -> list[float]:
    """Seconds between two questions about `partition`."""
    return [after - before for before, after in pairwise(now for now, chosen in looks if partition in chosen)]


@pytest.mark.parametrize(
    ("partitions", "members"), [(1, 1), (8, 1), (32, 1), (200, 1), (8, 4), (32, 10), (32, 32), (10, 40)]
)
@pytest.mark.parametrize("news", [0.0, float("inf")])
def test_a_group_stays_within_half_of_what_event_hubs_answers(partitions: int, members: int, news: float) -> None:
    looks = asked(partitions, members, news=news)
    assert members * sum(len(chosen) for _, chosen in looks) <= (60 + 2) * QUOTA / 2 + partitions


@pytest.mark.parametrize(("partitions", "members"), [(8, 1), (100, 1), (32, 4)])
def test_each_partition_has_its_turn(partitions: int, members: int) -> None:
    looks = asked(partitions, members, news=0.0)
    for number in range(-(-partitions // members)):
        assert max(gaps(looks, f"{number}")) <= 2 * max(0.1, partitions / (QUOTA / 2))


def test_a_query_with_news_is_told_of_the_next_within_a_tenth_of_a_second() -> None:
    assert max(gaps(asked(2, news=0.0), "0")) <= 0.11


def test_one_that_waits_for_long_asks_less_but_twice_a_second() -> None:
    looks = asked(2, seconds=120)
    late = gaps(looks, "0")[-20:]
    assert max(late) <= 0.51
    assert min(late) >= 0.49


def test_after_news_it_asks_often_again() -> None:
    times = [now for now, _ in asked(1, news=20)]
    assert max(after - before for before, after in pairwise(times) if 1010 <= before < 1020) > 0.45
    assert max(after - before for before, after in pairwise(times) if 1020.5 <= before < 1022) <= 0.11


def test_hardly_while_a_batch_runs() -> None:
    late = gaps(asked(1, resting=True, news=0.0), "0")
    assert min(late[1:]) >= 1


def test_who_comes_back_from_a_batch_asks_at_once() -> None:
    questions = Questions()
    questions.watch(["0"], 1)
    questions.answered(["0"], 10.0, news=True)
    questions.choose(["0"], everything=False, also_others=False)
    questions.rest()
    assert questions.due() >= 11.0
    assert questions.watch(["0"], 1)
    assert questions.due() < 10.1


def test_what_has_come_from_another_member_waits_for_nothing() -> None:
    questions = Questions()
    everything = [f"{number}" for number in range(10)]
    questions.answered(everything, 10.0, news=True)
    questions.watch(everything[:5], 20)
    questions.answered(questions.choose(everything, everything=False, also_others=False), 20.0, news=True)
    assert questions.due() > 20.5
    assert questions.watch(everything[:6], 20)
    assert questions.due() <= 20.0
    questions.choose(everything, everything=False, also_others=False)
    assert not questions.watch(everything[:3], 20)


def test_partitions_that_were_added_are_asked_about_all_together() -> None:
    questions = Questions()
    questions.answered(["0", "1"], 10.0, news=True)
    questions.watch(["0"], 10)
    everything = [f"{number}" for number in range(100)]
    chosen = questions.choose(everything, everything=False, also_others=True)
    assert {*everything[2:]} <= {*chosen}


def test_those_that_others_own_are_asked_about_now_and_then() -> None:
    questions = Questions()
    questions.answered(["0"], 10.0, news=True)
    questions.answered(["1"], 9.0, news=True)
    questions.watch(["0"], 1)
    assert questions.choose(["0", "1"], everything=False, also_others=False) == ["0"]
    assert questions.choose(["0", "1"], everything=False, also_others=True) == ["1", "0"]
    assert questions.choose(["0", "1"], everything=True, also_others=False) == ["0", "1"]
