"""The position at which reading of each partition continues, from the contents of lease tables, containers and
checkpoints. Does no I/O."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_ehbalance.errors import OptionError
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.position import START_OFFSET, Position, partition_order
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.starting_positions import HUB_KEY, AfterOffset
from spark_ehbalance.lease_table.blob.layout import BlobKind, Metadata, checkpoint, owner
from spark_ehbalance.query.offsets import EpochPosition, HubReference, LoggedBatch
from spark_ehbalance.settings.secrets import redacted

#: The batches of each `ehbalance` source of a query, oldest first.
Logs = Sequence[Sequence[LoggedBatch]]


#: The location that represents the absence of a lease table.
_NO_TABLE = "none"


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of `hub`, by partition. `remarks` are sentences about events that may be read twice."""

    hub: HubReference
    named: Mapping[str, Position | AfterOffset]
    remarks: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The positions as JSON for `--positions`; also accepted by `startingPosition`, which ignores the hub."""
        hub = {"name": self.hub.name, "namespace": self.hub.namespace or None, "createdMs": self.hub.created_ms}
        entries: dict[str, object] = {HUB_KEY: {name: value for name, value in hub.items() if value is not None}}
        for partition in sorted(self.named, key=partition_order):
            position = self.named[partition]
            number = {} if isinstance(position, AfterOffset) else {"next": position.next}
            entries[partition] = {**number, **({} if position.offset is None else {"offset": position.offset})}
        lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items())
        return "{\n" + ",\n".join(lines) + "\n}"


def parse_hub(value: object) -> HubReference | None:
    """Parse the hub that `Positions.to_json` wrote. Raises `ValueError`, whose message states the allowed form."""
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
        what, has = ("Partitions", "have") if len(unread) > 1 else ("Partition", "has")
        remarks += (
            f"{what} {', '.join(unread)} {has} not been read yet and {has} no position here. `init --positions` "
            "begins at the first retained event of each partition that has no position.",
        )
    return Positions(hub, named, remarks)


def container_positions(blobs: Mapping[str, Metadata], wanted: str | None) -> Positions:
    """The checkpoints of the group `wanted` in a container of the Azure SDKs, given its `blobs` by name.

    `wanted` is spelled as in the blob names; None if the container must have exactly one group. Raises `OptionError`.
    """
    parts = [(name.split("/"), metadata) for name, metadata in blobs.items()]
    groups: dict[str, dict[str, dict[str, Metadata]]] = {}
    for (*group, kind, partition), metadata in (part for part in parts if len(part[0]) == 5):
        groups.setdefault("/".join(group), {}).setdefault(kind, {})[partition] = metadata
    groups = {name: kinds for name, kinds in groups.items() if kinds.keys() & {kind.value for kind in BlobKind}}
    name = _only(groups, wanted, "--group", "groups")
    stored = {p: checkpoint(blob) for p, blob in groups[name].get(BlobKind.CHECKPOINT.value, {}).items()}
    named: dict[str, Position | AfterOffset] = {}
    for partition, position in stored.items():
        if position.sequence_number is not None:
            # The start of a partition is not the offset of an event.
            offset = None if position.offset == START_OFFSET else position.offset
            named[partition] = Position(position.sequence_number, offset)
        elif position.offset is not None:
            named[partition] = AfterOffset(position.offset)
    owners = map(owner, groups[name].get(BlobKind.OWNERSHIP.value, {}).values())
    return Positions(HubReference.from_group(Group.from_names(*name.split("/")), None), named, _of_owners(owners))


def query_positions(checkpoints: Mapping[str, Logs], wanted: str | None) -> Positions:
    """The positions of a group in the hub `wanted`, from its queries' `checkpoints` by location.

    `wanted` is None if the queries must have read exactly one hub. For each partition, the position with the latest
    epoch counts: a higher sequence number in an earlier epoch comes from a batch that was cut short. Raises
    `OptionError`.
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
    remarks = _rereads({p: (position.next, end) for p, (position, end) in latest.items()}, shared=shared)
    return Positions(hub, named, remarks)


def _progress(log: Sequence[LoggedBatch], *, shared: bool) -> dict[str, tuple[EpochPosition, int]]:
    """Partition → the position at which reading continues without losing an event, and the end of the last batch.

    Spark counts a batch as finished even if a change of owner cut short the reading of a partition. Only the lease
    table records that, so a shared partition is read from the start of its range in the last batch, or from the
    checkpoint that the table had when the batch was planned.
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
    """The last of `hubs`. Raises `OptionError` if the hub was recreated in between."""
    for hub in hubs:
        if hub.differs_from(hubs[-1]):
            raise _conflict("The checkpoints", f"they contain positions of {hub} and of {hubs[-1]}")
    return hubs[-1]


def _check_copies(logs: Sequence[tuple[str, Sequence[LoggedBatch]]]) -> None:
    seen: dict[str, str] = {}
    for folder, log in logs:
        lineage = log[-1].end.lineage
        if lineage and seen.setdefault(lineage, folder) != folder:
            raise _conflict(f"{seen[lineage]} and {folder}", "they are copies of the same checkpoint, so pass only one")


def _conflict(options: str, reason: str) -> OptionError:
    return OptionError("EHB_OPTIONS_CONFLICT", options=options, reason=reason)


def _table(log: Sequence[LoggedBatch]) -> str:
    """The lease table that the last batch used. A recreated table counts its epochs from 1."""
    end = log[-1].end
    return f"{end.table.location} (id {end.table.id})" if end.table else end.group or _NO_TABLE


def _only(found: Collection[str], wanted: str | None, option: str, what: str) -> str:
    """The name in `found` that equals `wanted`, or the only name if `wanted` is None. Raises `OptionError`."""
    named = [name for name in found if wanted is None or name.lower() == wanted.lower()]
    named = [name for name in named if name == wanted] or named
    if len(named) == 1:
        return named[0]
    shown = ", ".join(sorted(found)[:5]) + (" and more" if len(found) > 5 else "")
    if wanted is None:
        reason = f"choose one of the {what} {shown}" if shown else f"no {what} were found"
        raise OptionError("EHB_OPTION_REQUIRED", option=option, reason=reason)
    allowed = f"one of the {what} {shown}" if shown else f"nothing, because no {what} were found"
    raise OptionError("EHB_OPTION_INVALID", option=option, value=redacted(wanted), allowed=allowed)


def _of_owners(owners: Iterable[str | None]) -> tuple[str, ...]:
    named = sorted({owner for owner in owners if owner})
    if not named:
        return ()
    shown = ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
    return (
        f"{shown} may still be reading. Stop them first; otherwise, events that they read from now on are read twice.",
    )


def _rereads(ranges: Mapping[str, tuple[int, int]], *, shared: bool) -> tuple[str, ...]:
    """The remark about events that may be read twice. Partitions whose range in `ranges` is empty are ignored."""
    doubtful = [f"{start} to {end - 1} of partition {p}" for p, (start, end) in ranges.items() if start < end]
    if not doubtful:
        return ()
    why = "only the lease table recorded which of them were read" if shared else "their batch did not finish"
    return (f"Events {', '.join(doubtful)} may be read twice, because {why}.",)
