"""Keepers with different strategies on one Delta table: real threads, real clocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ehbalance.member.keeper import Keeper
from spark_ehbalance.stores.delta import DeltaStore
from spark_ehbalance.strategies import STRATEGIES
from tests.member.keepers import Keepers
from tests.waiting import wait_until

PARTITIONS = 6

PAIRS = pytest.mark.parametrize(("one", "other"), [("greedy", "race"), ("transfer", "cooperative")])


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Keepers]:
    keepers = Keepers(lambda: DeltaStore(str(tmp_path / "leases")), PARTITIONS)
    yield keepers
    keepers.close()


def begin(group: Keepers, name: str) -> Keeper:
    """A member that has the strategy of its name."""
    return group.begin(name, strategy=STRATEGIES[name], strategy_name=name)


def wait_shared(group: Keepers, one: str, other: str) -> None:
    wait_until(lambda: len(group.leases) == PARTITIONS, "the partitions are known")
    group.wait_owned(**{one: PARTITIONS // 2, other: PARTITIONS // 2})


@PAIRS
def test_two_that_start_together_share_what_nobody_owns(group: Keepers, one: str, other: str) -> None:
    begin(group, one)
    keeper = begin(group, other)
    wait_shared(group, one, other)
    group.stores[keeper].away = True
    group.wait_owned(**{one: PARTITIONS})
    group.stores[keeper].away = False
    wait_shared(group, one, other)
    keeper.stop()
    group.wait_owned(**{one: PARTITIONS})


@PAIRS
def test_two_take_over_from_an_only_owner_that_is_gone(group: Keepers, one: str, other: str) -> None:
    owner = group.start("owner", strategy=STRATEGIES["eph"], strategy_name="eph")
    group.wait_owned(owner=PARTITIONS)
    group.stores[owner].away = True
    begin(group, one)
    begin(group, other)
    wait_shared(group, one, other)
