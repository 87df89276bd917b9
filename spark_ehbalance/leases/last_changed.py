"""A cache: in which version of a chain of snapshots each row last changed.

Without it an observer compares each snapshot with the one before (`expiry`); with it many observers of one chain
share that work.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from spark_ehbalance.leases.model import Change


class Versions(NamedTuple):
    """The version in which each value last changed, those that changed longest ago first: each lease's counter,
    member's heartbeat, lease's epoch and pending handover."""

    leases: Mapping[str, int] = MappingProxyType({})
    members: Mapping[str, int] = MappingProxyType({})
    epochs: Mapping[str, int] = MappingProxyType({})
    handovers: Mapping[str, int] = MappingProxyType({})


class LastChanged:
    """The index of one snapshot, at `version` of its chain.

    It is computed when it is first read, with one copy for all changes since the last index that was read: most
    snapshots are drafts or lost a race for their commit, and nobody reads theirs.
    """

    __slots__ = ("_before", "_change", "_versions", "version")

    def __init__(self, version: int = 0, versions: Versions = Versions()) -> None:  # noqa: B008 it is immutable
        self.version = version
        self._before: LastChanged | None = None
        self._change: Change | None = None
        self._versions = versions

    def after(self, change: Change) -> LastChanged:
        """The index one version later, after `change`."""
        after = LastChanged(self.version + 1)
        after._before, after._change = self, change
        return after

    @property
    def versions(self) -> Versions:
        """The version of the last change of each value."""
        if self._before is None:
            return self._versions
        pending, base = [self], self._before
        while base._before is not None:
            pending.append(base)
            base = base._before
        versions: list[dict[str, int]] = list(base._versions)  # type: ignore[arg-type] # copied before they change
        for each in reversed(pending):
            assert each._change is not None
            for kind, (changed, removed) in enumerate(_changed_keys(each._change)):
                if changed and versions[kind] is base._versions[kind]:
                    versions[kind] = dict(versions[kind])
                for key in changed:
                    versions[kind].pop(key, None)
                    versions[kind][key] = each.version
                for key in removed:
                    del versions[kind][key]
        self._versions, self._before, self._change = Versions(*versions), None, None
        return self._versions


def _changed_keys(change: Change) -> tuple[tuple[list[str], list[str]], ...]:
    """What `change` changed, as (all changed keys, those of them that it removed), in the order of `Versions`."""
    counters, epochs, handovers = [], [], []
    for partition, old in change.leases_before.items():
        new = change.leases[partition]
        if old is None or old.counter != new.counter:
            counters.append(partition)
        if old is None or old.epoch != new.epoch:
            epochs.append(partition)
        if new.handover != (old and old.handover):
            handovers.append(partition)
    heartbeats = []
    for id, before in change.members_before.items():
        now = change.members.get(id)
        if not (before and now and before.counter == now.counter):
            heartbeats.append(id)
    left = [id for id in heartbeats if id not in change.members]
    ended = [partition for partition in handovers if change.leases[partition].handover is None]
    return (counters, []), (heartbeats, left), (epochs, []), (handovers, ended)
