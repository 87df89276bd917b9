"""Requirements on every lease store. A backend's tests inherit one of the two classes and open a store; the fixture
`contenders` provides threads or processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings

from spark_ehbalance.errors import ConflictError, StoreFormatError, StoreUnavailableError
from spark_ehbalance.group.capabilities import LEASE_TABLE
from spark_ehbalance.group.changes import AddPartitions, Claim, Heartbeat, Join, Transition
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Author, Lease, Member
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.contract import LeaseStore, commit
from tests.lease_table.contenders import CONTENDERS, Opening, claim_all, create_group
from tests.lease_table.snapshots import snapshots

Result = TypeVar("Result")

GROUP = Group("namespace.servicebus.windows.net", "hub", "$default")
ANN, BOB = Author("ann", "ann-1"), Author("bob", "bob-1")
FIRST = Position(-1)


class StoreConformance(ABC):
    """Requirements on every store, including a container that stores partitions separately: see `LeaseStore`."""

    capabilities = LEASE_TABLE

    @abstractmethod
    def opening(self, tmp_path: Path) -> Opening:
        """Opens handles on the same store, which has not been created yet."""

    @pytest.fixture
    def new(self, tmp_path: Path) -> Opening:
        """Opens handles on a store that has not been created yet."""
        return self.opening(tmp_path)

    def content(self, snapshot: Snapshot) -> object:
        """The content that every handle on the store reads."""
        if self.capabilities.members:
            return snapshot
        return {partition: (lease.owner, lease.checkpoint) for partition, lease in snapshot.leases.items()}

    def joined(self, store: LeaseStore, author: Author) -> LeaseStore:
        """Join `store` as `author`; returns the store."""
        if not self.capabilities.members:
            committed(store, Join(by=author, at_ms=1))
        return store

    @pytest.fixture
    def created(self, new: Opening) -> Opening:
        """Opens handles on a store with two members and two partitions."""
        with new() as store:
            filled(store, ANN, BOB)
        return new

    @pytest.fixture
    def mine(self, created: Opening) -> Iterator[LeaseStore]:
        with created() as store:
            yield self.joined(store, ANN)

    @pytest.fixture
    def theirs(self, created: Opening) -> Iterator[LeaseStore]:
        """Another handle on the same store."""
        with created() as store:
            yield self.joined(store, BOB)

    # create

    def test_create_writes_its_content_once(self, new: Opening) -> None:
        lease = Lease("0", epoch=2 if self.capabilities.epochs else 0, checkpoint=Position(7, "70"))
        content = Snapshot(GROUP, leases=MappingProxyType({"0": lease}))
        with new() as store, new() as other:
            assert not store.exists()
            store.create(GROUP, content)
            assert store.exists()
            assert other.read().leases == content.leases
            for handle in (store, other):
                handle.create(
                    Group.from_names(GROUP.namespace.upper(), GROUP.hub.upper(), GROUP.consumer_group.upper())
                )
            assert store.read().group == GROUP
            assert store.read().leases == content.leases, "it exists already"

    def test_racing_creators_all_succeed_with_one_store(self, new: Opening, contenders: Executor) -> None:
        found = list(contenders.map(create_group, [new] * CONTENDERS, [GROUP] * CONTENDERS))
        assert found == [GROUP] * CONTENDERS
        with new() as store:
            assert store.read() == Snapshot(GROUP)

    def test_one_of_racing_creators_for_several_groups_wins(self, new: Opening, contenders: Executor) -> None:
        groups = [replace(GROUP, consumer_group=f"group-{number}") for number in range(CONTENDERS)]
        found = list(contenders.map(create_group, [new] * CONTENDERS, groups))
        assert found.count(None) == CONTENDERS - 1
        with new() as store:
            assert store.read().group in found

    def test_create_for_another_group_is_rejected(self, mine: LeaseStore) -> None:
        other, before = replace(GROUP, consumer_group="other"), mine.read()
        with pytest.raises(StoreFormatError) as refusal:
            mine.create(other)
        assert mine.read() == before
        assert str(GROUP) in str(refusal.value)
        assert str(other) in str(refusal.value)

    def test_uncreated_store_is_neither_read_nor_written(self, new: Opening) -> None:
        with new() as store:
            with pytest.raises(StoreUnavailableError):
                store.read()
            with pytest.raises((ConflictError, StoreUnavailableError)):
                store.write(Snapshot(GROUP), Snapshot(GROUP))

    # read and write

    def test_other_handle_reads_a_write(self, mine: LeaseStore, theirs: LeaseStore) -> None:
        before, base = theirs.read(), mine.read()
        written = mine.write(base, with_owner(base, "ann"))
        assert written.version == base.version + 1
        assert written.leases["0"].owner == "ann"
        assert mine.read() == written
        assert self.content(theirs.read()) == self.content(written)
        assert self.content(before) == self.content(base), "a snapshot never changes"

    # commit

    def test_commit_rejects_transitions_made_invalid_by_a_lost_race(self, mine: LeaseStore, theirs: LeaseStore) -> None:
        stale = mine.read()
        newest = commit(theirs, theirs.read(), [claim(BOB, "0")]).after
        lost, beat = claim(ANN, "0"), Heartbeat(by=ANN, at_ms=7)
        refused = commit(mine, stale, [lost])
        assert not refused.accepted
        assert self.content(refused.after) == self.content(newest)
        assert theirs.read() == newest, "nothing is written"
        outcome = commit(mine, stale, [lost, beat])
        assert outcome.accepted == (beat,)
        assert [refused.transition for refused in outcome.rejected] == [lost]
        assert outcome.after.leases["0"].owner == "bob"
        assert outcome.after.members["ann"].renewed_at_ms == 7
        assert self.content(theirs.read()) == self.content(outcome.after)

    # contention

    def test_every_partition_is_claimed_exactly_once(self, new: Opening, contenders: Executor) -> None:
        partitions = [str(number) for number in range(32)]
        with new() as store:
            start = filled(store, ANN, partitions=partitions)
            authors = [Author(f"contender-{number}", "1") for number in range(CONTENDERS)]
            won = list(contenders.map(claim_all, [new] * CONTENDERS, authors))
            end = store.read()
        assert sorted((partition for theirs in won for partition in theirs), key=int) == partitions
        for author, theirs in zip(authors, won, strict=True):
            assert {lease.partition for lease in end.owned_by(author.id)} == set(theirs)
        if self.capabilities.atomic:
            assert {lease.epoch for lease in end.leases.values()} == {1}
            assert end.version == start.version + CONTENDERS + len(partitions), "one commit per join and claim, no more"


class LeaseTableConformance(StoreConformance):
    """Additional requirements on a store that keeps every field."""

    def test_stale_write_is_rejected(self, mine: LeaseStore, theirs: LeaseStore) -> None:
        base = mine.read()
        newest = theirs.write(theirs.read(), with_owner(base, "bob"))
        for _ in range(3):  # neither a rejection nor a read makes the next attempt succeed
            with pytest.raises(ConflictError):
                mine.write(base, with_owner(base, "ann"))
            assert theirs.read() == mine.read() == newest
        written = mine.write(newest, with_owner(newest, "ann"))
        assert theirs.read() == written

    @given(snapshot=snapshots(GROUP))
    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    def test_every_field_is_stored(self, mine: LeaseStore, theirs: LeaseStore, snapshot: Snapshot) -> None:
        written = mine.write(mine.read(), snapshot)
        found = theirs.read()
        assert found == written
        assert (found.leases, found.members) == (snapshot.leases, snapshot.members)
        assert list(found.leases) == list(snapshot.leases), "partitions stay in their order"

    def test_largest_group_can_be_stored(self, mine: LeaseStore, theirs: LeaseStore) -> None:
        leases = {str(n): Lease(str(n), f"owner-{n % 200}", n, checkpoint=Position(n, str(n))) for n in range(2_000)}
        members = {f"owner-{n}": Member(f"owner-{n}", f"{n}", n) for n in range(200)}
        base = mine.read()
        mine.write(base, replace(base, leases=leases, members=members))
        found = theirs.read()
        assert (found.leases, found.members) == (leases, members)

    def test_lost_race_is_retried(self, mine: LeaseStore, theirs: LeaseStore) -> None:
        stale = mine.read()
        newest = commit(theirs, theirs.read(), [claim(BOB, "0")]).after
        outcome = commit(mine, stale, [claim(ANN, "1")])
        assert (outcome.before, outcome.accepted, outcome.rejected) == (newest, (claim(ANN, "1"),), ())
        assert outcome.after.version == newest.version + 1
        assert [lease.owner for lease in outcome.after.leases.values()] == ["bob", "ann"]
        assert theirs.read() == outcome.after


def filled(
    store: LeaseStore,
    *members: Author,
    partitions: Sequence[str] = ("0", "1"),
    at: Position | None = FIRST,
    owned: Sequence[str] = (),
    group: Group = GROUP,
) -> Snapshot:
    """Create the store of `group` with `partitions` checkpointed at `at`; the first member owns `owned`."""
    store.create(group)
    joins = [Join(by=member, at_ms=1) for member in members]
    add = AddPartitions(by=members[0], at_ms=1, partitions=tuple(partitions), checkpoint=at)
    return committed(store, *joins, add, *(claim(members[0], partition) for partition in owned))


def committed(store: LeaseStore, *transitions: Transition, base: Snapshot | None = None) -> Snapshot:
    """Commit `transitions`, which must all be accepted, on `base` or the newest snapshot; returns the new snapshot."""
    outcome = commit(store, base or store.read(), transitions)
    assert (outcome.accepted, outcome.rejected) == (transitions, ())
    return outcome.after


def with_owner(snapshot: Snapshot, owner: str) -> Snapshot:
    """`snapshot` with `owner` as the owner of partition 0."""
    leases = {**snapshot.leases, "0": replace(snapshot.leases["0"], owner=owner)}
    return replace(snapshot, leases=MappingProxyType(leases))


def claim(by: Author, partition: str, epoch: int = 0) -> Claim:
    return Claim(by=by, at_ms=1, partition=partition, epoch=epoch)
