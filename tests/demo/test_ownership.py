"""The demo's comparison of two reads of the leases."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ehbalance.demo.ownership import moves
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
