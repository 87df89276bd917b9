"""What every lease store must do. A backend's tests inherit `StoreConformance` and say how a store is opened."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_ehbalance.errors import ConflictError, StoreFormatError, StoreUnavailableError
from spark_ehbalance.leases.model import Author, Handover, Lease, Load, Member, MemberState
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import AddPartitions, Checkpoint, Claim, Heartbeat, Join, Renew, Transition
from spark_ehbalance.stores.base import LeaseStore, commit
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import Position, partition_order

#: Opens another handle on one and the same store. It can be pickled where contenders are processes.
Recipe = Callable[[], LeaseStore]
Result = TypeVar("Result")

GROUP = Group("namespace.servicebus.windows.net", "hub", "$default")
ANN, BOB = Author("ann", "ann-1"), Author("bob", "bob-1")
CONTENDERS = 4
#: So many lost races in a row are no accident.
ATTEMPTS = 200

_start_line: threading.Barrier | None = None


def line_up(barrier: Any) -> None:
    """Initializer of a contender's thread or process: `barrier` is where the contenders wait for each other."""
    global _start_line
    _start_line = barrier


def wait_for_the_others() -> None:
    assert _start_line is not None
    _start_line.wait(timeout=60)


# --- what contenders do, each in a thread or process of its own ------------------------------------------------


def create_group(recipe: Recipe, group: Group) -> Group:
    wait_for_the_others()
    with recipe() as store:
        store.create(group)
        return store.read().group


def create_own_group(recipe: Recipe, number: int) -> str:
    """Create a group of one's own in the place that all want. Says who got it."""
    group = Group("namespace", "hub", f"group-{number}")
    wait_for_the_others()
    with recipe() as store:
        try:
            store.create(group)
        except StoreFormatError:
            return "refused"
        return str(store.read().group)


def claim_all(recipe: Recipe, me: Author) -> list[str]:
    """Claim free partitions one by one, in random order, until none is left. Returns those that were won."""
    won = []
    with recipe() as store:
        snapshot = commit(store, store.read(), [Join(by=me, at_ms=1)], attempts=ATTEMPTS).after
        wait_for_the_others()
        while free := [lease for lease in snapshot.leases.values() if lease.owner is None]:
            lease = random.choice(free)
            claim = Claim(by=me, at_ms=1, partition=lease.partition, epoch=lease.epoch)
            outcome = commit(store, snapshot, [claim], attempts=ATTEMPTS)
            snapshot = outcome.after
            if outcome.accepted:
                won.append(lease.partition)
    return won


def renew_often(recipe: Recipe, me: Author, times: int) -> int:
    """Renew one's own lease `times` times. Returns how many of the renewals were refused."""
    refused = 0
    with recipe() as store:
        snapshot = store.read()
        (lease,) = snapshot.owned_by(me.id)
        wait_for_the_others()
        for _ in range(times):
            renewal = Renew(by=me, at_ms=2, partition=lease.partition, epoch=lease.epoch)
            outcome = commit(store, snapshot, [renewal], attempts=ATTEMPTS)
            snapshot = outcome.after
            refused += len(outcome.refused)
    return refused


# --- arbitrary snapshots ---------------------------------------------------------------------------------------

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_longs = st.integers(-(2**63), 2**63 - 1)
_counters = st.integers(-(2**63), 2**62 - 1)  # higher ones are refused
_times = st.integers(0, 253_402_300_799_999)  # to the end of the year 9999
_positions = st.builds(Position, st.integers(-1, 2**63 - 1), st.none() | _texts)
_handovers = st.builds(Handover, _texts, _longs)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Any state that the model can express, wherever transitions lead; what was ever claimed has a position."""
    partitions = draw(st.sets(st.integers(0, 2_000).map(str) | _texts, max_size=6))
    claimed = {partition: draw(st.booleans()) for partition in sorted(partitions)}
    leases = {
        partition: Lease(
            partition=partition,
            owner=draw(st.none() | _texts) if claimed[partition] else None,
            epoch=draw(st.integers(1, 2**62 - 1)) if claimed[partition] else 0,
            renewal=draw(_counters),
            renewed_at_ms=draw(_times),
            owned_since_ms=draw(_times),
            checkpoint=draw(_positions if claimed[partition] else st.none() | _positions),
            handover=draw(st.none() | _handovers),
            load=draw(st.none() | st.builds(Load, st.floats(0, 1e9), st.floats(0, 1e9))),
            defences=draw(st.integers(0, 2**63 - 1)),
        )
        for partition in sorted(partitions, key=partition_order)
    }
    members = {
        id: Member(
            id=id,
            incarnation=draw(_texts),
            joined=draw(_counters),
            renewal=draw(_counters),
            renewed_at_ms=draw(_times),
            started_at_ms=draw(_times),
            host=draw(_texts),
            state=draw(st.sampled_from(MemberState)),
            max_owned=draw(st.none() | st.integers(1, 2**40)),
            strategy=draw(_texts),
        )
        for id in draw(st.sets(_texts, max_size=4))
    }
    return Snapshot(GROUP, 0, MappingProxyType(leases), MappingProxyType(members))


# --- the suite -------------------------------------------------------------------------------------------------


class StoreConformance(ABC):
    """Inherited by each backend's tests, which say where a store is and what its contenders are."""

    @abstractmethod
    def place(self, tmp_path: Path) -> Recipe:
        """How to open a store that has not been created yet; the same for each handle on it."""

    @abstractmethod
    def contenders(self, count: int) -> Executor:
        """`count` threads or processes, each prepared with `line_up` on a barrier for that many."""

    @pytest.fixture
    def recipe(self, tmp_path: Path) -> Recipe:
        """Opens handles on a store that has not been created yet."""
        return self.place(tmp_path)

    @pytest.fixture
    def created(self, recipe: Recipe) -> Recipe:
        """Opens handles on a store that is there, with two members and two partitions."""
        with recipe() as store:
            store.create(GROUP)
            joins = [Join(by=ANN, at_ms=1), Join(by=BOB, at_ms=1)]
            add = AddPartitions(by=ANN, at_ms=1, partitions=("0", "1"), checkpoint=Position(-1))
            refused = commit(store, store.read(), [*joins, add]).refused
            assert not refused
        return recipe

    def race(self, contender: Callable[..., Result], *columns: list[Any]) -> list[Result]:
        with self.contenders(CONTENDERS) as pool:
            return list(pool.map(contender, *columns, timeout=100))

    # create

    def test_a_new_store_is_empty(self, recipe: Recipe) -> None:
        with recipe() as store:
            store.create(GROUP)
            assert store.read() == Snapshot(GROUP)

    def test_create_leaves_what_is_there(self, created: Recipe) -> None:
        with created() as store:
            before = store.read()
            store.create(GROUP)
            assert store.read() == before
        with created() as another:
            another.create(GROUP)
            assert another.read() == before

    def test_racing_creators_all_succeed_with_one_store(self, recipe: Recipe) -> None:
        found = self.race(create_group, [recipe] * CONTENDERS, [GROUP] * CONTENDERS)
        assert found == [GROUP] * CONTENDERS
        with recipe() as store:
            assert store.read() == Snapshot(GROUP)

    def test_of_racing_creators_for_several_groups_one_gets_the_place(self, recipe: Recipe) -> None:
        outcomes = self.race(create_own_group, [recipe] * CONTENDERS, list(range(CONTENDERS)))
        assert outcomes.count("refused") == CONTENDERS - 1
        with recipe() as store:
            assert str(store.read().group) in outcomes

    @pytest.mark.parametrize("part", ["namespace", "hub", "consumer_group"])
    def test_create_is_refused_for_another_group(self, created: Recipe, part: str) -> None:
        other = replace(GROUP, **{part: "other"})
        with created() as store:
            before = store.read()
            with pytest.raises(StoreFormatError) as refusal:
                store.create(other)
            assert store.read() == before
        assert str(GROUP) in str(refusal.value)
        assert str(other) in str(refusal.value)

    def test_a_group_is_the_same_in_upper_case(self, created: Recipe) -> None:
        with created() as store:
            store.create(Group.of(GROUP.namespace.upper(), GROUP.hub.upper(), GROUP.consumer_group.upper()))
            assert store.read().group == GROUP

    def test_a_store_that_was_never_created_cannot_be_read(self, recipe: Recipe) -> None:
        with recipe() as store, pytest.raises(StoreUnavailableError):
            store.read()

    def test_a_store_that_was_never_created_cannot_be_written(self, recipe: Recipe) -> None:
        with recipe() as store, pytest.raises((ConflictError, StoreUnavailableError)):
            store.write(Snapshot(GROUP), Snapshot(GROUP))

    def test_a_handle_that_found_no_store_finds_it_later(self, recipe: Recipe) -> None:
        with recipe() as early, recipe() as late:
            with pytest.raises(StoreUnavailableError):
                early.read()
            late.create(GROUP)
            assert early.read() == Snapshot(GROUP)

    # read and write

    def test_a_write_is_seen_by_the_other_handle(self, created: Recipe) -> None:
        with created() as mine, created() as theirs:
            before = theirs.read()
            base = mine.read()
            written = mine.write(base, with_owner(base, "ann"))
            assert written.version == base.version + 1
            assert written.leases["0"].owner == "ann"
            assert mine.read() == written
            assert theirs.read() == written
            assert before == base, "a snapshot never changes"

    def test_a_stale_write_is_refused_and_changes_nothing(self, created: Recipe) -> None:
        with created() as mine, created() as theirs:
            base = mine.read()
            newest = theirs.write(theirs.read(), with_owner(base, "bob"))
            for _ in range(2):  # being refused must not make the next attempt succeed
                with pytest.raises(ConflictError):
                    mine.write(base, with_owner(base, "ann"))
            assert theirs.read() == newest
            assert mine.read() == newest

    def test_of_two_first_writes_one_is_refused(self, recipe: Recipe) -> None:
        """An empty store has no rows that a stale write would visibly replace."""
        with recipe() as mine, recipe() as theirs:
            mine.create(GROUP)
            base, same = mine.read(), theirs.read()
            newest = theirs.write(same, replace(base, leases={"0": Lease("0", "bob", checkpoint=Position(-1))}))
            with pytest.raises(ConflictError):
                mine.write(base, replace(base, leases={"0": Lease("0", "ann", checkpoint=Position(-1))}))
            assert mine.read() == newest

    def test_the_holder_of_the_newest_succeeds_after_a_refusal(self, created: Recipe) -> None:
        with created() as mine, created() as theirs:
            base = mine.read()
            theirs.write(theirs.read(), with_owner(base, "bob"))
            with pytest.raises(ConflictError):
                mine.write(base, with_owner(base, "ann"))
            newest = mine.read()
            written = mine.write(newest, with_owner(newest, "ann"))
            assert theirs.read() == written

    def test_an_old_snapshot_is_refused_although_the_handle_has_read_since(self, created: Recipe) -> None:
        with created() as mine, created() as theirs:
            base = mine.read()
            theirs.write(theirs.read(), with_owner(base, "bob"))
            newest = mine.read()
            with pytest.raises(ConflictError):
                mine.write(base, with_owner(base, "ann"))
            assert theirs.read() == newest

    def test_one_handle_writes_again_and_again(self, created: Recipe) -> None:
        with created() as store, created() as reader:
            snapshot = first = store.read()
            for number in range(120):  # beyond the store's own housekeeping
                snapshot = store.write(snapshot, with_owner(snapshot, f"owner-{number}"))
                assert snapshot.version == first.version + number + 1
                if number % 10 == 0:
                    assert reader.read() == snapshot
            assert reader.read() == snapshot

    @given(snapshot=snapshots())
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    def test_every_field_comes_back(self, created: Recipe, snapshot: Snapshot) -> None:
        with created() as writer, created() as reader:
            written = writer.write(writer.read(), snapshot)
            found = reader.read()
            assert found == written
            assert (found.leases, found.members) == (snapshot.leases, snapshot.members)
            assert list(found.leases) == list(snapshot.leases), "partitions stay in their order"

    def test_the_largest_group_comes_back(self, created: Recipe) -> None:
        leases = {str(n): Lease(str(n), f"owner-{n % 200}", n, checkpoint=Position(n, str(n))) for n in range(2_000)}
        members = {f"owner-{n}": Member(f"owner-{n}", f"{n}", n) for n in range(200)}
        with created() as writer, created() as reader:
            base = writer.read()
            writer.write(base, replace(base, leases=leases, members=members))
            found = reader.read()
        assert found.leases == leases
        assert found.members == members

    def test_it_may_be_closed_twice(self, created: Recipe) -> None:
        store = created()
        before = store.read()
        store.close()
        store.close()
        with created() as another:
            assert another.read() == before

    # commit

    def test_a_commit_is_tried_again_when_a_race_is_lost(self, created: Recipe) -> None:
        with created() as mine, created() as theirs:
            stale = mine.read()
            newest = commit(theirs, theirs.read(), [claim(BOB, "0")]).after
            outcome = commit(mine, stale, [claim(ANN, "1")])
            after = outcome.after
            assert (outcome.before, outcome.accepted, outcome.refused) == (newest, (claim(ANN, "1"),), ())
            assert after.version == newest.version + 1
            assert [lease.owner for lease in after.leases.values()] == ["bob", "ann"]
            assert theirs.read() == after

    def test_a_commit_drops_what_became_invalid(self, created: Recipe) -> None:
        with created() as mine, created() as theirs:
            stale = mine.read()
            commit(theirs, theirs.read(), [claim(BOB, "0")])
            lost, beat = claim(ANN, "0"), Heartbeat(by=ANN, at_ms=7)
            outcome = commit(mine, stale, [lost, beat])
            after = outcome.after
            assert outcome.accepted == (beat,)
            assert [refused.transition for refused in outcome.refused] == [lost]
            assert after.leases["0"].owner == "bob"
            assert after.members["ann"].renewed_at_ms == 7
            assert theirs.read() == after

    def test_a_commit_of_which_nothing_is_left_writes_nothing(self, created: Recipe) -> None:
        with created() as mine, created() as theirs:
            stale = mine.read()
            newest = commit(theirs, theirs.read(), [claim(BOB, "0")]).after
            outcome = commit(mine, stale, [claim(ANN, "0")])
            assert not outcome.accepted
            assert len(outcome.refused) == 1
            assert outcome.before == outcome.after == newest
            assert theirs.read() == newest

    @pytest.mark.parametrize(
        "nothing", [[], [Checkpoint(by=ANN, at_ms=1, partition="9", epoch=0, position=Position(1))]]
    )
    def test_without_anything_to_say_there_is_no_new_version(self, created: Recipe, nothing: list[Transition]) -> None:
        with created() as store, created() as reader:
            before = store.read()
            after = commit(store, before, nothing).after
            assert after == before
            assert reader.read().version == before.version

    def test_a_commit_gives_up_after_its_attempts(self, created: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
        with created() as mine, created() as theirs:
            base = mine.read()
            write = type(mine).write

            def beaten(self: LeaseStore, base: Snapshot, new: Snapshot) -> Snapshot:
                """Somebody else is faster, every time."""
                if new.leases["0"].owner == "ann":
                    commit(theirs, theirs.read(), [Heartbeat(by=BOB, at_ms=1)])
                return write(self, base, new)

            monkeypatch.setattr(type(mine), "write", beaten)
            with pytest.raises(ConflictError):
                commit(mine, base, [claim(ANN, "0")], attempts=3)
            assert theirs.read().version == base.version + 3
            assert theirs.read().leases["0"].owner is None

    # contention

    def test_each_partition_is_claimed_exactly_once(self, recipe: Recipe) -> None:
        partitions = [str(number) for number in range(32)]
        with recipe() as store:
            store.create(GROUP)
            add = AddPartitions(by=ANN, at_ms=1, partitions=tuple(partitions), checkpoint=Position(-1))
            start = commit(store, store.read(), [Join(by=ANN, at_ms=1), add]).after

            authors = [Author(f"contender-{number}", "1") for number in range(CONTENDERS)]
            won = self.race(claim_all, [recipe] * CONTENDERS, authors)

            end = store.read()
        assert sorted((partition for theirs in won for partition in theirs), key=int) == partitions
        for author, theirs in zip(authors, won, strict=True):
            assert {lease.partition for lease in end.owned_by(author.id)} == set(theirs)
        assert {lease.epoch for lease in end.leases.values()} == {1}
        assert end.version == start.version + CONTENDERS + len(partitions), "one commit per join and claim, no more"

    def test_no_renewal_is_lost(self, recipe: Recipe) -> None:
        authors = [Author(f"contender-{number}", "1") for number in range(CONTENDERS)]
        partitions = tuple(str(number) for number in range(CONTENDERS))
        times = 25
        with recipe() as store:
            store.create(GROUP)
            joins = [Join(by=author, at_ms=1) for author in authors]
            add = AddPartitions(by=authors[0], at_ms=1, partitions=partitions, checkpoint=Position(-1))
            claims = [claim(author, partition) for author, partition in zip(authors, partitions, strict=True)]
            start = commit(store, store.read(), [*joins, add, *claims]).after

            refused = self.race(renew_often, [recipe] * CONTENDERS, authors, [times] * CONTENDERS)

            end = store.read()
        assert refused == [0] * CONTENDERS
        for partition, lease in end.leases.items():
            assert lease.renewal == start.leases[partition].renewal + times
        assert end.version == start.version + CONTENDERS * times


def with_owner(snapshot: Snapshot, owner: str) -> Snapshot:
    """`snapshot` with partition 0 given to `owner`."""
    leases = {**snapshot.leases, "0": replace(snapshot.leases["0"], owner=owner)}
    return replace(snapshot, leases=MappingProxyType(leases))


def claim(by: Author, partition: str, epoch: int = 0) -> Claim:
    return Claim(by=by, at_ms=1, partition=partition, epoch=epoch)
