"""The checks of the lease table and its storage, tried with a table of its own beside the lease table."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from spark_ehbalance.errors import (
    ConflictError,
    StoreDamagedError,
    StoreError,
    StoreFormatError,
    StoreReplacedError,
    StoreUnavailableError,
)
from spark_ehbalance.group.changes import AddPartitions, Claim, Heartbeat, Join, Renew
from spark_ehbalance.group.defaults import LEASE_DURATION
from spark_ehbalance.group.durations import LONGEST_COMMIT, STORE_SHARE
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.model import Author, MemberState
from spark_ehbalance.group.position import START_OFFSET, Position
from spark_ehbalance.group.snapshot import OTHER_HUB_HELP, Snapshot
from spark_ehbalance.lease_table.contract import LeaseTable, commit
from spark_ehbalance.lease_table.opening import beside, open_store
from spark_ehbalance.ops.checks.findings import Finding, Verdict, failed, ok, warning
from spark_ehbalance.ops.common import age, now_ms

#: A table as a member sees it.
_Side = tuple[LeaseTable, Author]

#: Commits and looks of which the median is shown.
_COMMITS = 5

#: Partitions that two members claim at the same moment: storage that lets both have one does so nearly every time.
_RACES = 5

#: A clock that differs by more, in ms, invalidates the signatures of Azure's storage and of shared access signatures.
_SKEW_MS = 60_000

#: With an offset, which some stores need.
_START = Position(-1, START_OFFSET)

_RIGHTS = (
    "give the credential the right to list, read, write and delete there, such as Storage Blob Data Contributor, and "
    "check that this machine may reach the storage"
)


def check_table(
    store: LeaseTable, location: str, group: Group, hub: tuple[Collection[str], int | None] | None
) -> Finding:
    """The lease table as it is. `hub` is the hub's partitions and when it was created, None if that is not known."""
    what = "lease table"
    try:
        if not store.exists():
            return ok(what, f"there is none at {location} yet: the first query makes it")
        snapshot = store.read()
    except StoreError as error:
        return failed(what, str(error), _RIGHTS if isinstance(error, StoreUnavailableError) else "choose another one")
    if snapshot.group != group:
        return failed(what, f"it belongs to {snapshot.group}, not to {group}", "give each group a table of its own")
    partitions, created_ms = hub or (snapshot.leases, None)
    if other := snapshot.described_other_hub(created_ms):
        return failed(what, other, OTHER_HUB_HELP)
    unknown = sorted(snapshot.leases.keys() - set(partitions))
    if unknown:
        return failed(
            what,
            f"it has partitions {', '.join(unknown)}, which the event hub lacks: it was recreated, or is another one",
            "use another lease table, or make the hub with as many partitions",
        )
    return ok(what, f"{snapshot.group}: {len(snapshot.leases)} partitions, {_members(snapshot)}")


def _members(snapshot: Snapshot) -> str:
    active = [each for each in snapshot.members.values() if each.state is MemberState.ACTIVE]
    if not active:
        return "no member"
    renewed = max(each.renewed_at_ms for each in active)
    return f"{len(active)} members, the last one renewed {age(now_ms() - renewed)} ago"


def check_storage(location: str, options: Mapping[str, str]) -> Iterator[Finding]:
    """Try the storage with a table beside the one at `location`, and remove it again."""
    name = f"check_{uuid.uuid4().hex[:12]}"
    trial, group = beside(location, name)
    first, second = (open_store(trial, options, group=group) for _ in range(2))
    with first, second:
        ours = True
        try:
            yield from _tried(first, second, group)
        except StoreFormatError as error:
            ours = False  # something else is in its place
            yield failed("storage", str(error), "move it away")
        except StoreError as error:
            yield failed("storage", str(error), _RIGHTS)
        finally:
            removed = _removed(first, trial) if ours else None
        if removed is not None:
            yield removed


def _removed(store: LeaseTable, trial: str) -> Finding | None:
    try:
        store.erase()
    except StoreError as error:
        return failed("removal", str(error), f"{_RIGHTS}; then remove {trial} by hand")
    return None


def _tried(first: LeaseTable, second: LeaseTable, group: Group) -> Iterator[Finding]:
    partitions = tuple(str(each) for each in range(_RACES))
    sides = ((first, Author("ann", "1")), (second, Author("bob", "1")))
    first.create(group)
    for store, by in sides:  # a container knows what was written through it
        add = AddPartitions(by=by, at_ms=now_ms(), partitions=partitions, checkpoint=_START)
        commit(store, store.read(), [Join(by=by, at_ms=now_ms()), add])
    yield ok("rights", "a table beside the lease table was made, written and read")
    raced = _raced(sides, partitions)
    yield raced
    if raced.verdict is Verdict.FAILED:
        return
    yield _clocks(first)
    yield _times(*sides[0])


def _raced(sides: Sequence[_Side], partitions: Sequence[str]) -> Finding:
    what = "compare-and-swap"
    try:
        won = [_claimed_by_all(sides, partition) for partition in partitions]
    except (StoreDamagedError, StoreReplacedError):  # both have written the same version
        won = []
    if won == [1] * len(partitions):
        return ok(what, f"of two claims at the same moment one was accepted, {len(won)} times of {len(won)}")
    return failed(
        what,
        "of two claims of one partition at the same moment not exactly one was accepted, so that two queries would "
        "read the same partition",
        "use a storage that creates a file only if there is none, such as Azure's, S3 itself or a local disk",
    )


def _claimed_by_all(sides: Sequence[_Side], partition: str) -> int:
    """How many claims of the partition were accepted: each was decided on before another was written."""
    bases = [store.read() for store, _ in sides]

    def claim(side: _Side, base: Snapshot) -> bool:
        store, by = side
        epoch = base.leases[partition].epoch
        claim = Claim(by=by, at_ms=now_ms(), partition=partition, epoch=epoch, starting_position=_START)
        try:
            return bool(commit(store, base, [claim], attempts=1).accepted)
        except ConflictError:
            return False

    with ThreadPoolExecutor(len(sides)) as pool:
        return sum(pool.map(claim, sides, bases))


def _clocks(store: LeaseTable) -> Finding:
    """How far this machine's clock is from the storage's, by what was written a moment ago."""
    skew_ms = now_ms() - store.changed_at_ms()
    text = f"this machine's is {age(abs(skew_ms))} {'ahead of' if skew_ms >= 0 else 'behind'} the storage's at most"
    if abs(skew_ms) < _SKEW_MS:
        return ok("clock", text)
    return warning("clock", text, "have this machine set its clock by the network: tokens and signatures depend on it")


def _times(store: LeaseTable, by: Author) -> Finding:
    what, commits, looks = "latency", list[float](), list[float]()
    for _ in range(_COMMITS):
        began = time.monotonic()
        found = store.read()
        looks.append(time.monotonic() - began)
        own = [
            Renew(by=by, at_ms=now_ms(), partition=each.partition, epoch=each.epoch) for each in found.owned_by(by.id)
        ]
        outcome = commit(store, found, [Heartbeat(by=by, at_ms=now_ms()), *own])
        commits.append(outcome.seconds or 0.0)
    taken, look = statistics.median(commits), statistics.median(looks)
    members = int(LEASE_DURATION * STORE_SHARE / 3 / max(taken, 0.0001))
    text = f"a commit takes {1000 * taken:.0f} ms and a look {1000 * look:.0f} ms (medians of {_COMMITS})"
    if not store.capabilities.members:
        return ok(what, text)
    text += f": {members:,} members keep a lease duration of {LEASE_DURATION:g} s, for more it grows"
    if taken < LONGEST_COMMIT:
        return ok(what, text)
    return warning(what, text, "put the lease table in the region of the queries")
