"""What a lease store must do, and `commit`, which all writing goes through."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from spark_ehbalance.errors import ConflictError
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.model import Snapshot
from spark_ehbalance.leases.transitions import Outcome, Transition, apply
from spark_ehbalance.values.group import Group

#: Longest wait before a lost race is run again, in seconds.
LONGEST_RETRY_WAIT = 1.0

#: Longest wait after the first lost race, in lengths of an attempt; halved from race to race. It spreads a crowd out,
#: and who has lost more often goes first: as somebody wins every race, waiting longer and longer, as one does on a
#: network, would save the store nothing and leave the unlucky behind.
_FIRST_WAIT = 4.0


#: Lost races after which a commit is given up for the time being.
ATTEMPTS = 20


_Store = TypeVar("_Store", bound="LeaseStore")


class LeaseStore(ABC):
    """Keeps one group's snapshot, with a compare-and-swap on its version.

    A store is used by one thread at a time and must be opened in the process that uses it. Every backend passes the
    conformance suite in `tests/stores/store_conformance.py`.
    """

    @abstractmethod
    def create(self, group: Group, content: Snapshot | None = None) -> None:
        """Make the store for `group`, with `content` if any, where there is none yet; several may try at once.

        Raises `StoreFormatError` if there is something else at its place, `StoreUnavailableError` if it cannot be
        reached. Either the store is there afterwards or nothing is.
        """

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a store at its place. Raises `StoreUnavailableError`."""

    @abstractmethod
    def read(self) -> Snapshot:
        """The newest snapshot. Raises `StoreFormatError`, `StoreUnavailableError`."""

    @abstractmethod
    def write(self, base: Snapshot, new: Snapshot) -> Snapshot:
        """Put `new` in the place of `base`, only if `base` is still the newest, and return it with its version.

        Raises `ConflictError` if it is not: then nothing was written. After an error whose outcome is unknown a
        store looks for its own commit before it says anything. Raises `StoreUnavailableError` if it cannot tell.
        """

    @abstractmethod
    def record(self, changes: Sequence[OwnershipChange]) -> None:
        """Add to the group's history, for people, reports and audits. A store without a history does nothing.

        Raises `StoreUnavailableError`; the leases do not depend on it.
        """

    @abstractmethod
    def tidy(self) -> None:
        """Remove what earlier versions have left behind; the group's leader calls it now and then.

        Raises `StoreUnavailableError`.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections. May be called twice."""

    def __enter__(self: _Store) -> _Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def commit(
    store: LeaseStore, base: Snapshot, transitions: Iterable[Transition], *, attempts: int = ATTEMPTS
) -> Outcome:
    """Write the valid ones of `transitions` as one commit. After a lost race: re-read, re-validate, try again.

    `before` of the outcome is the snapshot that was replaced, or the newest one where there was nothing to write.
    Raises `ConflictError` after `attempts` lost races, `StoreUnavailableError` as the store does.
    """
    transitions = list(transitions)
    for attempt in range(1, attempts + 1):
        outcome = apply(base, transitions)
        if outcome.after is base:
            return outcome
        began = time.monotonic()
        try:
            return replace(outcome, after=store.write(base, outcome.after))
        except ConflictError:
            if attempt == attempts:
                raise
        time.sleep(random.uniform(0, longest_wait(attempt, time.monotonic() - began)))
        base = store.read()
    raise AssertionError("unreachable")


def longest_wait(attempt: int, took: float) -> float:
    """The longest wait in seconds before a race is run again whose `attempt`, counted from 1, was lost in `took`
    seconds."""
    return min(LONGEST_RETRY_WAIT, took * _FIRST_WAIT * 0.5 ** (attempt - 1))
