"""The demo's comparison of two reads of the leases."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_ehbalance.demo.ownership import moves, violations
from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.position import Position


def leases(*owners: str | None, epoch: int = 1, read: int = 0) -> Mapping[str, Lease]:
    return {
        str(number): Lease(str(number), owner=owner, epoch=epoch, checkpoint=Position.before(read))
        for number, owner in enumerate(owners)
    }


def test_equal_moves_are_one_line() -> None:
    before = leases(None, *"AAAAAAAAAA")
    after = leases("A", "A", "B", *"AAAAAAA", "B", epoch=2)
    assert moves(before, after) == ["nobody → A: partition 0", "A → B: partitions 2, 10"]
    assert moves(after, after) == []


@pytest.mark.parametrize(
    ("after", "broken"),
    [
        (leases("C", epoch=6, read=9), "partition 0: owned by C, which is none of A, B"),
        (leases("A", epoch=4, read=9), "partition 0: the epoch fell from 5 to 4"),
        (leases("B", epoch=5, read=9), "partition 0: owned by A, then by B, both with epoch 5"),
        (leases("A", epoch=5, read=8), "partition 0: the checkpoint fell from 9 to 8"),
        ({}, "partition 0 is gone"),
    ],
    ids=["foreign owner", "epoch falls", "new owner, old epoch", "checkpoint falls", "partition gone"],
)
def test_broken_rules_are_named(after: Mapping[str, Lease], broken: str) -> None:
    assert violations(leases("A", epoch=5, read=9), after, "AB") == [broken]


@pytest.mark.parametrize("after", [leases("B", epoch=6, read=9), leases(None, epoch=5, read=10)])
def test_a_move_with_a_new_epoch_and_a_release_break_no_rule(after: Mapping[str, Lease]) -> None:
    assert violations(leases("A", epoch=5, read=9), after, "AB") == []
