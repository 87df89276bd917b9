"""The lease keeper of a consumer, which has no batches: it uses partitions, checkpoints each and gives it back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.member.keeper import Keeper
from spark_ehbalance.member.query import Progress
from spark_ehbalance.stores.memory import MemoryStore
from spark_ehbalance.values.position import Position
from tests.member.keepers import Keepers
from tests.waiting import wait_until


@pytest.fixture
def group() -> Iterator[Keepers]:
    """A group on a store in memory, whose members look often."""
    memory = MemoryStore()
    made = Keepers(lambda: memory, 4, look_interval=0.1, handover_look_interval=0.05)
    yield made
    made.close()


def progress(keeper: Keeper, partition: str, number: int) -> Progress:
    return Progress(keeper.kept()[partition].epoch, Position(number))


def test_a_checkpoint_is_written_when_the_call_returns_also_further_back(group: Keepers) -> None:
    ann = group.start("ann")
    ann.use(group.owned("ann"))
    for number in (5, 9, 3):
        assert ann.checkpoint("0", progress(ann, "0", number), 20)
        assert group.leases["0"].checkpoint == Position(number)


def test_the_same_checkpoint_again_is_no_commit(group: Keepers) -> None:
    ann = group.start("ann", lease_duration=60.0, balance_interval=60.0)
    assert ann.checkpoint("0", progress(ann, "0", 5), 20)
    version = group.snapshot.version
    assert ann.checkpoint("0", progress(ann, "0", 5), 20)
    assert group.snapshot.version == version


def test_what_is_used_is_handed_over_with_its_checkpoint_and_not_before(group: Keepers) -> None:
    ann = group.start("ann")
    ann.use(group.owned("ann"))
    group.start("bob")
    wait_until(lambda: group.coming_to("bob"), "bob has asked")
    asked = sorted(group.coming_to("bob"))[0]
    epoch = ann.kept()[asked].epoch
    wait_until(lambda: asked not in ann.holdings(), "nothing is begun with it")
    assert ann.checkpoint(sorted(group.owned("ann") - group.coming_to("bob"))[0], Progress(epoch, Position(1)), 20)
    assert group.leases[asked].owner == "ann", "it is used"
    assert not ann.checkpoint(asked, Progress(epoch, Position(7)), 20)
    lease = group.leases[asked]
    assert (lease.owner, lease.epoch, lease.checkpoint) == ("bob", epoch + 1, Position(7))
    assert not ann.checkpoint(asked, Progress(epoch, Position(8)), 20), "it is not ann's any more"
    assert group.leases[asked].checkpoint == Position(7)


def test_what_is_not_used_any_more_is_handed_over(group: Keepers) -> None:
    ann = group.start("ann")
    ann.use(group.owned("ann"))
    group.start("bob")
    wait_until(lambda: len(group.coming_to("bob")) == 2, "bob has asked")
    ann.use(group.owned("ann") - group.coming_to("bob"))
    group.wait_owned(ann=2, bob=2)


def test_a_partition_is_given_back_while_the_others_stay(group: Keepers) -> None:
    ann = group.start("ann", balance_interval=60.0, reactive=False)
    ann.use(group.owned("ann"))
    ann.give_back("1", 20)
    assert group.leases["1"].owner is None
    assert len(group.owned("ann")) == 3
    assert ann.take(20)
    assert group.leases["1"].owner == "ann"
    assert group.leases["1"].epoch == 2
    ann.give_back("17", 20)  # nobody's


def test_a_checkpoint_that_cannot_be_written_in_time_is_written_later(group: Keepers) -> None:
    ann = group.start("ann")
    ann.use(group.owned("ann"))
    store = group.stores[ann]
    store.away = True
    with pytest.raises(StoreUnavailableError, match="partition 0"):
        ann.checkpoint("0", progress(ann, "0", 5), 0.3)
    store.away = False
    wait_until(lambda: group.leases["0"].checkpoint == Position(5), "it is written")


def test_the_silence_of_owners_is_measured_by_what_they_have_said(group: Keepers) -> None:
    group.start("ann", lease_duration=60.0)
    bob = group.start("bob", lease_duration=60.0)
    group.wait_owned(ann=2, bob=2)

    def silent() -> float:
        sight = bob.sight()
        assert not (sight and sight.expired)
        return max(sight.silence.values()) if sight else 0.0

    wait_until(lambda: silent() > 0.01, "it grows")
    assert silent() < 0.5
