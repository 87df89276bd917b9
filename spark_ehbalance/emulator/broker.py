"""Hubs, partitions, consumer groups and the admission of readers: all of Event Hubs that needs no connection."""

from __future__ import annotations

import contextlib
import json
import re
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import IO, Protocol

from . import service_errors
from .amqp.errors import AmqpError
from .log_segments import LogCorruptError
from .message import Event
from .partition_log import PartitionLog

DEFAULT_GROUP = "$Default"
MAX_READERS_WITHOUT_EPOCH = 5  # Azure's quota per partition and consumer group
MAX_PARTITIONS = 2000  # Azure's largest hub
#: A hub's description until it is whole.
_NEW = ".hub.json.new"

_HUB_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,254}[A-Za-z0-9])?")
_GROUP_NAME = re.compile(r"\$Default|[A-Za-z0-9]([A-Za-z0-9._-]{0,48}[A-Za-z0-9])?", re.IGNORECASE)


@dataclass(frozen=True)
class HubSpec:
    """A hub to create: its name and its number of partitions, 1 to 2000. Raises ValueError if one is invalid."""

    name: str
    partitions: int

    def __post_init__(self) -> None:
        if not _HUB_NAME.fullmatch(self.name):
            raise ValueError(f"hub name {self.name!r}: allowed are letters, digits, '.', '-' and '_', at most 256")
        if not 1 <= self.partitions <= MAX_PARTITIONS:
            raise ValueError(f"hub {self.name!r} with {self.partitions} partitions: allowed are 1 to {MAX_PARTITIONS}")


class Reader(service_errors.NamedReader, Protocol):
    """A receiver as the broker sees it."""

    def detach(self, error: AmqpError | None = None) -> None:
        """Disconnect it, with the reason."""


@dataclass
class Hub:
    """A hub: its partitions in order, its consumer groups by lower-case name, and its readers.

    `readers` are those of each consumer group (in lower case) and partition.
    """

    name: str
    created_at: datetime
    partitions: list[PartitionLog]
    groups: dict[str, str]
    directory: Path | None = None
    geo_replicated: bool = False
    disabled: bool = False  # until enabled, or until the emulator ends
    readers: dict[tuple[str, str], list[Reader]] = field(default_factory=dict)
    _next_partition: int = 0

    def partition(self, partition: str) -> PartitionLog:
        """Raises AmqpError (com.microsoft:argument-out-of-range) for an id that the hub does not have."""
        if not re.fullmatch("0|[1-9][0-9]{0,3}", partition) or int(partition) >= len(self.partitions):
            raise service_errors.no_such_partition(len(self.partitions))
        return self.partitions[int(partition)]

    def group(self, group: str) -> str:
        """The name with which the group was created; `group` may be in any case. Raises AmqpError (amqp:not-found)."""
        name = self.groups.get(group.lower())
        if name is None:
            raise service_errors.group_not_found(self.name, group[:50])
        return name

    def route(self, partition_key: str | None) -> str:
        """The partition for events that were sent to none: by hash of their key, or round-robin without a key."""
        if partition_key is not None:
            return str(zlib.crc32(partition_key.encode()) % len(self.partitions))
        self._next_partition = (self._next_partition + 1) % len(self.partitions)
        return str(self._next_partition)

    def save(self) -> None:
        """Store what the logs do not contain."""
        if self.directory is not None:
            description = {
                "name": self.name,
                "created_at": self.created_at.isoformat(),
                "partitions": len(self.partitions),
                "consumer_groups": list(self.groups.values()),
            }
            temporary = self.directory / _NEW
            temporary.write_text(json.dumps(description))
            temporary.replace(self.directory / "hub.json")

    def delete_files(self) -> None:
        """Delete the hub's files, and its directory unless something else is in it."""
        for log in self.partitions:
            log.delete_files()
        if self.directory is not None:
            for name in ("hub.json", _NEW):
                (self.directory / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.directory.rmdir()

    def admit(self, reader: Reader, group: str, partition: str) -> None:
        """Admit `reader`, and disconnect the readers that it replaces. Raises AmqpError if it may not read.

        A reader with an epoch replaces all with the same, a lower or no epoch; it is refused while one has a higher
        epoch. A reader without epoch joins up to four others without epoch.
        """
        key = (group.lower(), partition)
        present = self.readers.get(key, [])
        highest = max((other.epoch for other in present if other.epoch is not None), default=None)
        if reader.epoch is None:
            if highest is not None:
                raise service_errors.epoch_required(highest)
            if len(present) >= MAX_READERS_WITHOUT_EPOCH:
                raise service_errors.too_many_readers(MAX_READERS_WITHOUT_EPOCH, present)
        elif highest is not None and highest > reader.epoch:
            raise service_errors.epoch_too_low(highest, reader.epoch)
        else:
            for other in list(present):
                other.detach(service_errors.replaced(other, reader))
        self.readers.setdefault(key, []).append(reader)  # not `present`, which is removed with its last reader

    def dismiss(self, reader: Reader, group: str, partition: str) -> None:
        """Remove `reader`, which is detached; ignored if it is not admitted."""
        key = (group.lower(), partition)
        present = self.readers.get(key, [])
        if reader in present:
            present.remove(reader)
        if not present:
            self.readers.pop(key, None)


class Broker:
    """All hubs of the namespace; hub names are case-insensitive. Not thread-safe."""

    def __init__(
        self,
        data_directory: Path | None,
        retention: timedelta,
        consumer_groups: Iterable[str],
        *,
        geo_replicated: bool = False,
    ) -> None:
        """Open the hubs in `data_directory`. Raises LogCorruptError, OSError (also if the directory is in use)."""
        self._geo_replicated = geo_replicated
        self._lock: IO[bytes] | None = None
        self._directory = data_directory
        self._retention = retention
        self._groups = (DEFAULT_GROUP, *consumer_groups)
        for group in self._groups:
            _check_group(group)
        self._hubs: dict[str, Hub] = {}
        if data_directory is not None:
            data_directory.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(data_directory)
            for description in sorted(data_directory.glob("*/hub.json")):
                self._load(description)

    def open_hub(self, name: str, path: str | None = None) -> Hub:
        """A hub that a client asks for by `path`. Raises AmqpError if there is none (amqp:not-found), or if it is
        disabled (com.microsoft:entity-disabled)."""
        if name.lower() not in self._hubs:
            raise service_errors.not_found((path or name)[:300])
        hub = self._hubs[name.lower()]
        if hub.disabled:
            raise service_errors.disabled(hub.name)
        return hub

    def hub(self, name: str) -> Hub:
        """Raises AmqpError (amqp:not-found) for a hub that does not exist."""
        hub = self._hubs.get(name.lower())
        if hub is None:
            raise service_errors.not_found(name[:260])
        return hub

    def add_hub(self, spec: HubSpec) -> Hub:
        """Create a hub, or extend an existing one to that number of partitions. Raises OSError from the disk."""
        hub = self._hubs.get(spec.name.lower())
        if hub is None:
            directory = self._directory / spec.name.lower() if self._directory else None
            if directory is not None:
                _check_unused(directory)
            hub = Hub(spec.name, datetime.now(timezone.utc), [], {}, directory, self._geo_replicated)
            self._hubs[spec.name.lower()] = hub
        self._extend(hub, spec.partitions - len(hub.partitions), self._groups)
        return hub

    def add_partitions(self, name: str, count: int) -> None:
        """Give a hub `count` more partitions. Raises ValueError if `count` is not positive or the hub gets too many."""
        hub = self.hub(name)
        HubSpec(hub.name, len(hub.partitions) + count)
        if count < 1:
            raise ValueError(f"{count} more partitions: a hub can only grow")
        self._extend(hub, count, ())

    def add_consumer_group(self, name: str, group: str) -> None:
        """Create a consumer group, if it does not exist. Raises ValueError for an invalid name."""
        _check_group(group)
        self._extend(self.hub(name), 0, (group,))

    def delete_consumer_group(self, name: str, group: str) -> Hub:
        """Delete a consumer group; returns its hub. The caller disconnects its readers. Raises ValueError for $Default,
        AmqpError for one that does not exist."""
        hub = self.hub(name)
        if hub.group(group) == DEFAULT_GROUP:
            raise ValueError(f"consumer group {DEFAULT_GROUP}: it cannot be deleted")
        del hub.groups[group.lower()]
        hub.save()
        return hub

    def delete_hub(self, name: str) -> Hub:
        """Delete a hub with its events. The caller disconnects its readers."""
        hub = self.hub(name)
        del self._hubs[name.lower()]
        hub.delete_files()
        return hub

    def append(self, hub: Hub, partition: str, events: Sequence[Event]) -> None:
        """Add events to a partition. Raises AmqpError if there is no such partition, OSError from the disk."""
        hub.partition(partition).append(events)

    def expire(self) -> None:
        """Delete all events older than the retention time."""
        before_ms = int((time.time() - self._retention.total_seconds()) * 1000)
        for hub in self._hubs.values():
            for log in hub.partitions:
                log.expire(before_ms)

    def close(self) -> None:
        """Release the data directory for other emulators."""
        if self._lock is not None:
            self._lock.close()

    def _extend(self, hub: Hub, partitions: int, groups: Iterable[str]) -> None:
        for index in range(len(hub.partitions), len(hub.partitions) + partitions):
            directory = hub.directory / str(index) if hub.directory else None
            hub.partitions.append(PartitionLog(directory, geo_replicated=hub.geo_replicated))
        for group in groups:
            hub.groups.setdefault(group.lower(), group)
        hub.save()

    def _load(self, path: Path) -> None:
        try:
            description = json.loads(path.read_text())
            created_at = datetime.fromisoformat(description["created_at"])
            spec = HubSpec(description["name"], description["partitions"])
            groups = (*description["consumer_groups"], *self._groups)
        except (ValueError, KeyError, TypeError) as error:
            raise LogCorruptError(f"{path} is damaged: {error!r}") from None
        hub = Hub(spec.name, created_at, [], {}, path.parent, self._geo_replicated)
        self._hubs[hub.name.lower()] = hub
        self._extend(hub, spec.partitions, groups)


def _check_unused(directory: Path) -> None:
    """Raise OSError if `directory`, in which a hub is to be made, holds a file with content that is not of a hub whose
    making was cut off."""
    for path in sorted(directory.rglob("*")):
        if path.name != _NEW and (path.is_symlink() or (path.is_file() and path.stat().st_size)):
            raise OSError(
                f"{directory} holds files that are no event hub's, such as {path.relative_to(directory)}: nothing was "
                "changed there; choose another data directory"
            )


def _lock(directory: Path) -> IO[bytes]:
    """Lock `directory` against other emulators while the returned file is open, where the operating system can."""
    file = open(directory / "lock", "ab")  # noqa: SIM115 - open as long as the broker
    with contextlib.suppress(ImportError):  # Windows has no fcntl
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise OSError(f"the data directory {directory} is in use by another emulator") from None
    return file


def _check_group(group: str) -> None:
    if not _GROUP_NAME.fullmatch(group):
        raise ValueError(f"consumer group {group!r}: allowed are letters, digits, '.', '-' and '_', at most 50")
