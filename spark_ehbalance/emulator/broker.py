"""Hubs, partitions and consumer groups, and the rules for admitting readers. Knows nothing about connections."""

from __future__ import annotations

import itertools
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Protocol

from spark_ehbalance.emulator import service_errors as errors
from spark_ehbalance.emulator.amqp.errors import AmqpError
from spark_ehbalance.emulator.faults import Faults
from spark_ehbalance.emulator.partition_keys import partition_for_key
from spark_ehbalance.emulator.partition_log import PartitionLog
from spark_ehbalance.emulator.service_errors import service_error
from spark_ehbalance.emulator.settings import Settings

DEFAULT_GROUP = "$Default"
MAX_READERS_WITHOUT_EPOCH = 5  # Azure's quota per partition and consumer group
MAX_PARTITIONS = 2000  # Azure's largest hub

_HUB_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,254}[A-Za-z0-9])?")
_GROUP_NAME = re.compile(r"\$Default|[A-Za-z0-9]([A-Za-z0-9._-]{0,48}[A-Za-z0-9])?", re.IGNORECASE)


def check_hub(name: str, partitions: int) -> None:
    """Raise ValueError if a hub cannot have this name or number of partitions."""
    if not _HUB_NAME.fullmatch(name):
        raise ValueError(f"hub name {name!r} is invalid: use at most 256 letters, digits, '.', '-' and '_'")
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise ValueError(f"hub {name!r} cannot have {partitions} partitions: use 1 to {MAX_PARTITIONS}")


def _check_group(group: str) -> None:
    if not _GROUP_NAME.fullmatch(group):
        raise ValueError(f"consumer group {group!r} is invalid: use at most 50 letters, digits, '.', '-' and '_'")


class Reader(Protocol):
    """A receiver. `epoch` is its owner level, or None if it has none."""

    name: str
    epoch: int | None

    def detach(self, error: AmqpError | None = None) -> None:
        """Disconnect the reader, and send it `error` as the reason."""


class RateLimit:
    """Limits the number of requests that a hub answers per second. With None or 0, there is no limit."""

    def __init__(self, per_second: int | None) -> None:
        self._times = deque[float](maxlen=per_second) if per_second else None  # of the latest answers

    def check(self) -> None:
        """Count a request. Raises AmqpError (com.microsoft:server-busy) above the limit."""
        if (times := self._times) is None:
            return
        now = time.monotonic()
        if len(times) == times.maxlen and now - times[0] < 1.0:
            raise service_error(errors.SERVER_BUSY)
        times.append(now)


@dataclass
class Hub:
    """A hub. `partitions` are in the order of their ids; `groups` maps lower-case names to the names as created."""

    name: str
    created_at: datetime
    geo_replicated: bool
    faults: Faults
    requests: RateLimit
    partitions: list[PartitionLog] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)
    disabled: bool = False
    paused: set[str] = field(default_factory=set)  # ids of the partitions that deliver no events
    _arrivals: Iterator[int] = field(default_factory=itertools.count)
    _readers: dict[tuple[str, str], list[Reader]] = field(default_factory=dict)
    _next_partition: int = 0

    def partition(self, partition: str) -> PartitionLog:
        """The log of a partition. Raises AmqpError (com.microsoft:argument-out-of-range) for an unknown id."""
        if not re.fullmatch("0|[1-9][0-9]{0,3}", partition) or int(partition) >= len(self.partitions):
            raise service_error(errors.NO_SUCH_PARTITION, last=len(self.partitions) - 1)
        return self.partitions[int(partition)]

    def group(self, group: str) -> str:
        """The group's name as it was created; `group` is case-insensitive. Raises AmqpError (amqp:not-found)."""
        name = self.groups.get(group.lower())
        if name is None:
            raise service_error(errors.GROUP_NOT_FOUND, hub=self.name.lower(), group=group[:50])
        return name

    def route(self, partition_key: str | None) -> str:
        """The partition for an event sent to the hub: by hash of its key, or round-robin without one."""
        if partition_key is not None:
            return str(partition_for_key(partition_key, len(self.partitions)))
        self._next_partition = (self._next_partition + 1) % len(self.partitions)
        return str(self._next_partition)

    def extend(self, partitions: int = 0, groups: Iterable[str] = ()) -> None:
        """Add this number of `partitions`, and those of `groups` that do not exist."""
        for _ in range(partitions):
            self.partitions.append(PartitionLog(self._arrivals, geo_replicated=self.geo_replicated))
        for group in groups:
            self.groups.setdefault(group.lower(), group)

    def add_group(self, group: str) -> None:
        """Create a consumer group, if it does not exist. Raises ValueError for an invalid name."""
        _check_group(group)
        self.extend(groups=(group,))

    def readers(self, group: str, partition: str) -> list[Reader]:
        return self._readers.setdefault((group.lower(), partition), [])

    def admit(self, reader: Reader, group: str, partition: str) -> None:
        """Admit `reader`, and disconnect the readers that it replaces. Raises AmqpError if it is not allowed to read.

        A reader with an epoch replaces all readers that have the same epoch, a lower one, or none; it is refused while
        another reader has a higher epoch. A reader without an epoch is admitted beside at most four other readers, none
        of which may have an epoch.
        """
        present = self.readers(group, partition)
        names = {other.epoch: other.name for other in present if other.epoch is not None}
        highest = max(names, default=None)
        if reader.epoch is None:
            if highest is not None:
                raise service_error(errors.EPOCH_REQUIRED, highest=highest)
            if len(present) >= MAX_READERS_WITHOUT_EPOCH:
                connected = ", ".join(other.name for other in present)
                raise service_error(errors.TOO_MANY_READERS, allowed=MAX_READERS_WITHOUT_EPOCH, names=connected)
        elif highest is not None and highest > reader.epoch:
            values = {"old": names[highest], "highest": highest, "new": reader.name, "epoch": reader.epoch}
            raise service_error(errors.EPOCH_TOO_LOW, **values)
        else:
            for other in list(present):
                old_epoch = "" if other.epoch is None else other.epoch
                values = {"old": other.name, "old_epoch": old_epoch, "new": reader.name, "epoch": reader.epoch}
                other.detach(service_error(errors.REPLACED, **values))
        present.append(reader)


class Broker:
    """All hubs of the namespace, and the injected faults. Hub names are case-insensitive. Not thread-safe."""

    def __init__(self, settings: Settings) -> None:
        """Raises ValueError for an invalid consumer group."""
        self.faults = Faults()
        self._settings = settings
        self._groups = (DEFAULT_GROUP, *settings.consumer_groups)
        for group in self._groups:
            _check_group(group)
        self._hubs: dict[str, Hub] = {}

    def hub(self, name: str, path: str | None = None) -> Hub:
        """The hub with this name. Raises AmqpError (amqp:not-found) if it does not exist; the error's text then names
        `path`, which the client requested."""
        hub = self._hubs.get(name.lower())
        if hub is None:
            raise service_error(errors.NOT_FOUND, path=(path or name)[:300])
        return hub

    def hubs(self) -> list[str]:
        return [hub.name for hub in self._hubs.values()]

    def enabled_hub(self, name: str, path: str | None = None) -> Hub:
        """The hub with this name. Raises AmqpError as `hub` does, and also if the hub is disabled."""
        hub = self.hub(name, path)
        if hub.disabled:
            raise service_error(errors.DISABLED, hub=hub.name)
        return hub

    def check_path(self, path: str) -> None:
        """Raise AmqpError as `hub` does unless the path is the namespace, a hub, or below a hub."""
        name = path.partition("/")[0]
        if name and not name.startswith("$"):
            self.hub(name, path)

    def add_hub(self, name: str, partitions: int) -> None:
        """Create a hub, or extend an existing one to this number of partitions. Raises ValueError if the hub cannot
        have the name or the number."""
        check_hub(name, partitions)
        hub = self._hubs.get(name.lower())
        if hub is None:
            requests = RateLimit(self._settings.management_requests)
            hub = Hub(name, datetime.now(timezone.utc), self._settings.geo_replicated, self.faults, requests)
            self._hubs[name.lower()] = hub
        hub.extend(partitions - len(hub.partitions), self._groups)

    def delete_hub(self, name: str) -> Hub:
        """Delete a hub with its events. The caller disconnects its readers."""
        hub = self.hub(name)
        del self._hubs[name.lower()]
        return hub
