"""The next positions by partition, from lease tables, the Azure SDKs' containers and Spark's checkpoints. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_ehbalance.errors import OptionError
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.position import START_OFFSET, Position, partition_order
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.starting_positions import HUB_KEY, AfterOffset
from spark_ehbalance.lease_table.blob.layout import Kind, Metadata, checkpoint, owner
from spark_ehbalance.query.offsets import EpochPosition, HubReference, LoggedBatch
from spark_ehbalance.settings.secrets import redacted

#: The batches of each `ehbalance` source of a query, oldest first.
Logs = Sequence[Sequence[LoggedBatch]]


#: Stands for the lease table of a query without one.
_NO_TABLE = "none"


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of `hub` in a source. `remarks` are sentences about those that are conservative."""

    hub: HubReference
    named: Mapping[str, Position | AfterOffset]
    remarks: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The positions for `--positions` and, but for the hub, for `startingPosition`."""
        hub = {"name": self.hub.name, "namespace": self.hub.namespace or None, "createdMs": self.hub.created_ms}
        entries: dict[str, object] = {HUB_KEY: {name: value for name, value in hub.items() if value is not None}}
        for partition in sorted(self.named, key=partition_order):
            position = self.named[partition]
            number = {} if isinstance(position, AfterOffset) else {"next": position.next}
            entries[partition] = {**number, **({} if position.offset is None else {"offset": position.offset})}
        lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items())
        return "{\n" + ",\n".join(lines) + "\n}"


def parse_hub(value: object) -> HubReference | None:
    """The hub that `Positions.to_json` wrote. Raises `ValueError` with what is allowed."""
    if value is None:
        return None
    name, namespace, created = (
        (value.get("name"), value.get("namespace", ""), value.get("createdMs"))
        if isinstance(value, dict)
        else (None, None, None)
    )
    if isinstance(name, str) and isinstance(namespace, str) and (created is None or type(created) is int):
        return HubReference(name.lower(), namespace, created)
    raise ValueError('{"name": HUB, "namespace": HOST, "createdMs": NUMBER}')


def lease_table_positions(found: Snapshot) -> Positions:
    """The checkpoints in a lease table."""
    hub = HubReference.from_group(found.group, found.table.hub_created_ms if found.table else None)
    named = {partition: lease.checkpoint for partition, lease in found.leases.items() if lease.checkpoint}
    remarks = _of_owners(lease.owner for lease in found.leases.values())
    if unread := sorted(found.leases.keys() - named.keys(), key=partition_order):
        remarks += (
            f"Conservative: nothing of partition {', '.join(unread)} was read yet. Where the file names no position, "
            "`init --positions` begins at the first retained event.",
        )
    return Positions(hub, named, remarks)


def container_positions(blobs: Mapping[str, Metadata], wanted: str | None) -> Positions:
    """The checkpoints of the group `wanted` in a container of the Azure SDKs, from its `blobs` by name; None: the only
    group. Raises `OptionError`."""
    parts = [(name.split("/"), metadata) for name, metadata in blobs.items()]
    groups: dict[str, dict[str, dict[str, Metadata]]] = {}
    for (*group, kind, partition), metadata in (part for part in parts if len(part[0]) == 5):
        groups.setdefault("/".join(group), {}).setdefault(kind, {})[partition] = metadata
    groups = {name: kinds for name, kinds in groups.items() if kinds.keys() & {kind.value for kind in Kind}}
    name = _only(groups, wanted, "--group", "groups")
    stored = {p: checkpoint(blob) for p, blob in groups[name].get(Kind.CHECKPOINT.value, {}).items()}
    named: dict[str, Position | AfterOffset] = {}
    for partition, position in stored.items():
        if position.sequence_number is not None:
            # The start of a partition is no event's offset.
            offset = None if position.offset == START_OFFSET else position.offset
            named[partition] = Position(position.sequence_number, offset)
        elif position.offset is not None:
            named[partition] = AfterOffset(position.offset)
    owners = map(owner, groups[name].get(Kind.OWNERSHIP.value, {}).values())
    return Positions(HubReference.from_group(Group.from_names(*name.split("/")), None), named, _of_owners(owners))


def query_positions(checkpoints: Mapping[str, Logs], wanted: str | None) -> Positions:
    """The positions of a group in the hub `wanted` (None: the only one), from its queries' `checkpoints` by location.

    The latest epoch of each partition counts: later events of an earlier epoch belong to a batch that was cut short.
    Raises `OptionError`.
    """
    names = {hub.name for logs in checkpoints.values() for log in logs if (hub := log[-1].end.hub) is not None}
    name = _only(names, wanted, "--event-hub-name", "event hubs")
    read = [(folder, log) for folder, logs in checkpoints.items() for log in logs if _reads(log, name)]
    hub = _only_hub([batch.end.hub for _, log in read for batch in log if batch.end.hub is not None])
    _check_copies(read)
    tables = sorted({_table(log) for _, log in read})
    shared = tables != [_NO_TABLE]
    if len(tables) > 1:
        raise _conflict("The checkpoints", f"their queries last read with different lease tables: {', '.join(tables)}")
    if len(read) > 1 and not shared:
        reason = f"{len(read)} sources without a lease table have each read all partitions of {name}"
        raise _conflict("The checkpoints", reason)
    progress = [_progress(log, shared=shared) for _, log in read]
    latest: dict[str, tuple[EpochPosition, int]] = {}
    for own in progress:
        latest |= {p: max(found, latest.get(p, found)) for p, found in own.items()}
    named = {p: Position.before(position.next) for p, (position, _) in latest.items()}
    remarks = _again({p: (position.next, end) for p, (position, end) in latest.items()}, shared=shared)
    return Positions(hub, named, remarks)


def _progress(log: Sequence[LoggedBatch], *, shared: bool) -> dict[str, tuple[EpochPosition, int]]:
    """By partition, the position that loses no event, and the end of the last batch.

    Spark counts a batch as finished even if a change of owner cut a partition short. Only the lease table records
    that, so a shared partition continues where its last batch began, or at its checkpoint at that time.
    """
    found: dict[str, tuple[EpochPosition, int]] = {}
    for batch in log:
        known = batch.end.checkpoints if shared else {}
        for partition, range_ in batch.end.ranges.items():
            start = range_.start if shared or not batch.finished else range_.end
            found[partition] = EpochPosition(range_.epoch, known.get(partition, start)), range_.end
        for partition, position in batch.end.other_positions.items():
            found[partition] = EpochPosition(position.epoch, known.get(partition, position.next)), position.next
    return found


def _reads(log: Sequence[LoggedBatch], hub: str) -> bool:
    last = log[-1].end.hub
    return last is not None and last.name == hub


def _only_hub(hubs: Sequence[HubReference]) -> HubReference:
    """The last one. Raises `OptionError` if the hub was recreated meanwhile."""
    for hub in hubs:
        if hub.is_another(hubs[-1]):
            raise _conflict("The checkpoints", f"they contain positions of {hub} and of {hubs[-1]}")
    return hubs[-1]


def _check_copies(logs: Sequence[tuple[str, Sequence[LoggedBatch]]]) -> None:
    seen: dict[str, str] = {}
    for folder, log in logs:
        lineage = log[-1].end.lineage
        if lineage and seen.setdefault(lineage, folder) != folder:
            raise _conflict(f"{seen[lineage]} and {folder}", "they are copies of one checkpoint: pass one")


def _conflict(options: str, reason: str) -> OptionError:
    return OptionError("EHB_OPTIONS_CONFLICT", options=options, reason=reason)


def _table(log: Sequence[LoggedBatch]) -> str:
    """The location of the lease table that the last batch used."""
    end = log[-1].end
    return end.table.location if end.table else end.group or _NO_TABLE


def _only(found: Collection[str], wanted: str | None, option: str, what: str) -> str:
    """The one of `found` that is `wanted`, or the only one. Raises `OptionError`."""
    named = [name for name in found if wanted is None or name.lower() == wanted.lower()]
    named = [name for name in named if name == wanted] or named
    if len(named) == 1:
        return named[0]
    shown = ", ".join(sorted(found)[:5]) + (" and more" if len(found) > 5 else "") or "none"
    if wanted is None:
        raise OptionError("EHB_OPTION_REQUIRED", option=option, reason=f"the {what} are {shown}")
    allowed = f"one of the {what} {shown}"
    raise OptionError("EHB_OPTION_INVALID", option=option, value=redacted(wanted), allowed=allowed)


def _of_owners(owners: Iterable[str | None]) -> tuple[str, ...]:
    named = sorted({owner for owner in owners if owner})
    if not named:
        return ()
    shown = ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
    return (f"{shown} may still be reading: stop them first, or events that they read from now on are read twice.",)


def _again(ranges: Mapping[str, tuple[int, int]], *, shared: bool) -> tuple[str, ...]:
    """The remark about events that may be read twice, from the partitions' `ranges`, which may be empty."""
    doubtful = [f"{start} to {end - 1} of partition {p}" for p, (start, end) in ranges.items() if start < end]
    if not doubtful:
        return ()
    why = "only the lease table knew how far they were read" if shared else "their batch is unfinished"
    return (f"Conservative: events {', '.join(doubtful)} may be read twice, as {why}.",)
