"""The interface of a lease store, and `commit`, through which every write goes."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import ClassVar, TypeVar

from spark_ehbalance.errors import ConflictError, StoreUnavailableError
from spark_ehbalance.group.capabilities import LEASE_TABLE, LONGEST_RETRY_WAIT, Capabilities
from spark_ehbalance.group.changes import Outcome, Rejected, Transition, apply
from spark_ehbalance.group.history import OwnershipChange, ownership_changes
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.snapshot import Snapshot

#: Longest wait after the first lost race, as a multiple of the attempt's duration. It is halved after each further lost
#: race, so that a repeated loser gets precedence. Exponential backoff would not help the store, because every race has
#: a winner.
_FIRST_WAIT_FACTOR = 4.0

#: Timeout of a request to a storage service in seconds, including retries. delta-rs's defaults (30 s, and 180 s for
#: retries) are longer than a lease duration.
REQUEST_TIMEOUT = 5.0

#: Attempts after which a commit fails with `ConflictError`.
ATTEMPTS = 20

_Store = TypeVar("_Store", bound="LeaseStore")


class PartialWriteError(Exception):
    """A partly successful write to a store that is not `atomic`; `after` is the resulting snapshot.

    `lost` maps each partition for which nothing was written to the reason. Only the next read shows whether the
    `unknown` partitions were written.
    """

    def __init__(self, after: Snapshot, lost: Mapping[str, str], unknown: frozenset[str] = frozenset()) -> None:
        super().__init__(f"lost partitions {sorted(lost)}, and {sorted(unknown)} are unknown")
        self.after = after
        self.lost = lost
        self.unknown = unknown


class LeaseStore(ABC):
    """Stores the snapshot of one group, with a compare-and-swap on its version. The methods from `history` to
    `maintain` are for operators.

    Only one thread at a time may use a store, in the process that opened it; two other threads may call `record` and
    `tidy` at the same time. Every backend passes the conformance suite (`tests/lease_table/store_conformance.py`).

    In a backend without epochs and renewal counters, each handle counts the changes that it reads, and an epoch only
    identifies a member's tenure.
    """

    capabilities: ClassVar[Capabilities] = LEASE_TABLE

    #: Given the sequence number of an event per partition, returns the offsets that can be found, by partition. A
    #: backend whose checkpoints need offsets calls it; the store's user sets it.
    find_offsets: Callable[[Mapping[str, int]], Mapping[str, str]] = staticmethod(lambda positions: {})

    @abstractmethod
    def create(self, group: Group, content: Snapshot | None = None) -> None:
        """Create the store of `group` with `content` unless it exists. Several members may call this at the same time.

        Either the whole store is created, or nothing is. Raises `StoreFormatError` if something else exists at its
        location, and `StoreUnavailableError` if the storage does not answer.
        """

    @abstractmethod
    def exists(self) -> bool:
        """Whether the store exists. Raises `StoreFormatError` if something else exists at its location, and
        `StoreUnavailableError` if the storage does not answer."""

    @abstractmethod
    def read(self) -> Snapshot:
        """The newest snapshot. Raises `StoreFormatError` or `StoreUnavailableError`."""

    @abstractmethod
    def write(self, base: Snapshot, new: Snapshot) -> Snapshot:
        """Replace `base` with `new` if `base` is still the newest snapshot. Returns `new` with its version.

        If `base` is not the newest snapshot, nothing is written and `ConflictError` is raised. After an error that
        leaves the outcome unknown, the store reads the newest commit; if the outcome remains unknown, it raises
        `StoreUnavailableError`. A store that is not `atomic` raises `PartialWriteError` if only part of `new` was
        written, and `StoreUnavailableError` if nothing was.
        """

    def record(self, changes: Sequence[OwnershipChange]) -> None:  # noqa: B027
        """Append to the group's history, if the store has one. Leases do not depend on it.

        Raises `StoreUnavailableError`.
        """

    def tidy(self) -> None:  # noqa: B027
        """Remove the files of earlier versions, if there are any. The group's leader calls this every hundred commits
        or so. Raises `StoreUnavailableError`."""

    def history(self) -> list[OwnershipChange]:
        """All recorded changes, the oldest first. Raises `StoreUnavailableError`."""
        return []

    def follow_history(self, since_ms: int) -> list[OwnershipChange]:
        """The changes recorded since the last call on this handle. The first call, and occasionally a later one,
        returns all changes written at `since_ms` or later by the storage's clock. Raises `StoreUnavailableError`."""
        return []

    def read_rejected(self) -> Snapshot:
        """The rows of a table that `read` rejects; they may be outdated. Raises `StoreError`."""
        return self.read()

    def maintain(self) -> None:  # noqa: B027
        """Run `tidy` and compact the history, without removing foreign files. Raises `StoreUnavailableError`."""

    @abstractmethod
    def close(self) -> None:
        """Close files and connections. Can be called twice."""

    def __enter__(self: _Store) -> _Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def commit(
    store: LeaseStore, base: Snapshot, transitions: Iterable[Transition], *, attempts: int = ATTEMPTS
) -> Outcome:
    """Write the valid `transitions` in one commit. After a lost race, read and validate again, and retry.

    The outcome's `before` is the replaced snapshot, or the newest one if there was nothing to write. After a partial
    write (`PartialWriteError`), transitions for lost partitions are rejected, and those for unknown partitions are
    neither accepted nor rejected. Raises `ConflictError` after `attempts` lost races, and `StoreUnavailableError` if
    the store raises it.
    """
    transitions = list(transitions)
    for attempt in range(1, attempts + 1):
        outcome = apply(base, transitions)
        if outcome.after is base:
            return outcome if attempt == 1 else replace(outcome, lost_races=attempt - 1)
        began = time.monotonic()
        try:
            after = store.write(base, outcome.after)
            return replace(outcome, after=after, seconds=time.monotonic() - began, lost_races=attempt - 1)
        except PartialWriteError as part:
            return _partly(outcome, part, time.monotonic() - began)
        except ConflictError:
            if attempt == attempts:
                raise
        time.sleep(random.uniform(0, longest_wait(attempt, time.monotonic() - began)))
        base = store.read()
    raise AssertionError("unreachable")


def _partly(outcome: Outcome, part: PartialWriteError, seconds: float) -> Outcome:
    accepted, refused = [], list(outcome.rejected)
    for transition in outcome.accepted:
        partition = getattr(transition, "partition", "")  # transitions about members and the group have no partition
        if partition in part.lost:
            refused.append(Rejected(transition, part.lost[partition]))
        elif partition not in part.unknown:
            accepted.append(transition)
    return replace(outcome, after=part.after, accepted=tuple(accepted), rejected=tuple(refused), seconds=seconds)


def commit_and_record(
    store: LeaseStore, base: Snapshot, transitions: Iterable[Transition], warn: Callable[[str], object]
) -> Outcome:
    """Call `commit`, then `record`. Raises the same errors as `commit`."""
    outcome = commit(store, base, transitions)
    record(store, outcome, warn)
    return outcome


def record(store: LeaseStore, outcome: Outcome, warn: Callable[[str], object]) -> None:
    """Append the ownership changes to the history. A failure is only passed to `warn`, because the commit has
    succeeded."""
    changes = ownership_changes(outcome)
    try:
        if changes:
            store.record(changes)
    except StoreUnavailableError as error:
        warn(f"The change was committed but not recorded in the history: {error.reason}")


def longest_wait(attempt: int, took: float) -> float:
    """The longest wait in seconds after `attempt`, counted from 1, lost its race in `took` seconds."""
    return min(LONGEST_RETRY_WAIT, took * _FIRST_WAIT_FACTOR * 0.5 ** (attempt - 1))
