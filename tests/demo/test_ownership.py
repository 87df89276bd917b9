"""The demo's comparison of looks at the leases."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_ehbalance.demo.ownership import Move, Ownership, described
from spark_ehbalance.leases.model import Lease
from spark_ehbalance.values.position import Position


def leases(*owners: str | None, epoch: int = 1, read: int = 0) -> Mapping[str, Lease]:
    return {
        str(number): Lease(str(number), owner=owner, epoch=epoch, checkpoint=Position.before(read))
        for number, owner in enumerate(owners)
    }


def test_a_move_is_returned_once() -> None:
    ownership = Ownership("AB")

    assert ownership.see(leases("A", None), at=0) == [Move("0", None, "A", 1)]
    assert ownership.see(leases("A", None), at=1) == []
    assert ownership.owned_by("A") == ["0"]
    assert ownership.owned_by(None) == ["1"]


def test_only_a_change_of_owner_counts_as_a_move() -> None:
    ownership = Ownership("AB")
    for epoch, owner in enumerate(["A", None, "A", None, "B", "A"], start=1):
        ownership.see(leases(owner, epoch=epoch), at=epoch)

    assert ownership.moves == 2
    assert ownership.violations == []


def test_time_without_an_owner_counts_from_the_first_owner() -> None:
    ownership = Ownership("AB")
    looks = [(None, None), ("A", None), ("A", "B"), (None, "B"), (None, "B"), ("B", "B")]
    for at, owners in enumerate(looks):
        ownership.see(leases(*owners, epoch=at), at=at)

    assert (ownership.looks, ownership.looks_with_a_gap, ownership.longest_gap) == (5, 3, 2)


def test_the_time_after_the_end_does_not_count() -> None:
    ownership = Ownership("AB")
    ownership.see(leases("A"), at=0)
    ownership.over = True
    ownership.see(leases(None), at=1)
    ownership.see(leases(None), at=9)

    assert (ownership.looks, ownership.looks_with_a_gap, ownership.longest_gap) == (1, 0, 0)


@pytest.mark.parametrize(
    ("after", "broken"),
    [
        (leases("C", epoch=6), "partition 0: owned by C, which is none of A, B"),
        (leases("A", epoch=4, read=9), "partition 0: the epoch fell from 5 to 4"),
        (leases("B", epoch=5, read=9), "partition 0: owned by A, then by B, both with epoch 5"),
        (leases("A", epoch=5, read=8), "partition 0: the checkpoint fell from 9"),
        ({}, "partition 0 is gone"),
    ],
    ids=["foreign owner", "epoch falls", "new owner, old epoch", "checkpoint falls", "partition gone"],
)
def test_broken_rules_are_named(after: Mapping[str, Lease], broken: str) -> None:
    ownership = Ownership("AB")
    ownership.see(leases("A", epoch=5, read=9), at=0)
    ownership.see(after, at=1)

    assert broken in ownership.violations


def test_equal_moves_are_one_line() -> None:
    moves = [Move("10", "A", "B", 2), Move("9", "A", "B", 3), Move("1", None, "A", 1)]

    assert described(moves) == ["partitions 9, 10: A → B, epoch 2, 3", "partition 1: nobody → A, epoch 1"]
