"""A cache: what is computed from a snapshot, carried over to the next one as far as the change between them allows.

It holds the ownership index, results that depend on ownership alone, results that depend on loads, and the
last-changed index. It is no part of the state: without it every result is the same and comes later. The simulator
depends on it: 200 members look at each version of 2,000 leases.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from spark_ehbalance.leases.last_changed import LastChanged
from spark_ehbalance.leases.model import Change, Member
from spark_ehbalance.leases.ownership import Ownership

_T = TypeVar("_T")

#: Results kept under one name. More than one is needed: members see expiries and pins at slightly different times.
_MOST_RESULTS = 8


class Results:
    """Results of functions by name and key, which stay valid as long as this object is the current one."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[str, dict[Hashable, Any]] = {}

    def get(self, name: str, compute: Callable[[], _T], key: Hashable = None) -> _T:
        """The result kept for `name` and `key`, or else that of `compute`."""
        known: dict[Hashable, _T] = self._by_name.setdefault(name, {})
        if key not in known:
            while len(known) >= _MOST_RESULTS:
                del known[next(iter(known))]
            known[key] = compute()
        return known[key]


class LoadVersion(Results):
    """Results that depend on the leases' loads and the members' CPU, limits, strategies and lease durations alone. It
    also serves as their version: it stays the same object until any of them changes."""

    __slots__ = ()

    def after(self, change: Change) -> LoadVersion:
        """The version after `change`."""
        for partition, old in change.leases_before.items():
            if old is None or old.load != change.leases[partition].load:
                return LoadVersion()
        for id, before in change.members_before.items():
            now = change.members.get(id)
            if before is None or now is None or _weighed(before) != _weighed(now):
                return LoadVersion()
        return self


def _weighed(member: Member) -> tuple[object, ...]:
    # The part of a member's row that decisions depend on; every heartbeat changes the rest of its load.
    return member.load and member.load.cpu, member.max_owned, member.strategy, member.lease_duration_ms


class Derived:
    """The cache of one snapshot. `last_changed` is None unless the snapshot belongs to a chain that keeps it."""

    __slots__ = ("by_ownership", "last_changed", "load_version", "ownership")

    def __init__(self) -> None:
        self.ownership: Ownership | None = None
        self.by_ownership = Results()
        self.load_version = LoadVersion()
        self.last_changed: LastChanged | None = None

    def copy(self, other: Derived) -> None:
        """Take all from `other`, whose snapshot has the same rows."""
        self.ownership, self.by_ownership = other.ownership, other.by_ownership
        self.load_version, self.last_changed = other.load_version, other.last_changed

    def follow(self, before: Derived, ownership: Ownership, change: Change) -> None:
        """Take what still holds from `before`, whose snapshot had the index `ownership` and was changed by `change`."""
        self.ownership = ownership.after(change)
        if self.ownership is ownership:
            self.by_ownership = before.by_ownership
        self.load_version = before.load_version.after(change)
        self.last_changed = before.last_changed and before.last_changed.after(change)


class Identity:
    """A key that stands for one object, for those whose comparison would cost as much as the result."""

    __slots__ = ("_object",)

    def __init__(self, object: object) -> None:
        self._object = object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other._object is self._object

    def __hash__(self) -> int:
        return id(self._object)
