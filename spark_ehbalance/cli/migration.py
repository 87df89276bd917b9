"""What `import-checkpoints` and `export-checkpoints` share: the positions of a blob container, asking the hub about
them, and the table of what is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, TypeVar

import typer

from spark_ehbalance.cli.blob_group import BlobGroup
from spark_ehbalance.cli.common import console, now_ms, say, table
from spark_ehbalance.errors import HubUnavailableError, OptionError
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.hub.receiver import PartitionAddress
from spark_ehbalance.hub.resolve import position_of
from spark_ehbalance.leases.expiry import CLOCK_SKEW_ALLOWANCE
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.source.options import Options
from spark_ehbalance.stores.blob.layout import StoredCheckpoint
from spark_ehbalance.values.defaults import LEASE_DURATION
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import START_OFFSET, Position, partition_order

_T = TypeVar("_T")

#: Seconds in which the hub must return an event that it has: an offset beyond its last one is then wrong.
RESOLVE_TIMEOUT = 20.0

#: Seconds after which the SDKs take an owner for dead: the longest default (Python, six balancing intervals of 30 s).
_EXPIRY = 180.0

#: Partitions resolved at a time: each takes a connection, which mostly waits.
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class MoveOptions:
    """What is written, and what is allowed."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be written.")] = False
    force: Annotated[bool, typer.Option("--force", help="Also while somebody reads there.")] = False
    allow_back: Annotated[bool, typer.Option("--allow-back", help="Also back: events are read again.")] = False


def readers(found: Snapshot) -> list[str]:
    """Members and owners that may be reading with the lease table."""
    last_seen = [(each.id, each.renewed_at_ms) for each in found.members.values()]
    last_seen += [(each.owner, each.renewed_at_ms) for each in found.leases.values() if each.owner]
    return _recent(last_seen, (found.lease_duration_ms or 1000 * LEASE_DURATION) / 1000)


def consumers(found: BlobGroup) -> list[str]:
    """The owners that may be reading with the container. One that is stopped does not always remove itself."""
    return _recent(found.owners.items(), _EXPIRY)


def _recent(last_seen: Iterable[tuple[str, int]], expiry: float) -> list[str]:
    """Those seen within `expiry` seconds, plus the allowance for clock skew."""
    oldest = now_ms() - 1000 * (expiry + CLOCK_SKEW_ALLOWANCE)
    return sorted({id for id, at_ms in last_seen if at_ms > oldest})


def listed(names: Collection[str]) -> str:
    """The first of `names`, for a message."""
    return ", ".join(sorted(names)[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def checkpoints(found: Snapshot) -> dict[str, Position]:
    """The positions that a lease table has."""
    return {partition: each.checkpoint for partition, each in found.leases.items() if each.checkpoint}


def print_positions(
    group: Group,
    partitions: Iterable[str],
    positions: Mapping[str, Position],
    there: Mapping[str, Position],
    is_same: Callable[[str, Position], bool],
    becomes: Callable[[Position], str],
    *,
    dry_run: bool,
) -> None:
    """Print for each partition the position that is taken over, the one that is `there`, and what becomes of it.

    Sequence numbers and offsets are those of the last finished event.
    """
    rows = []
    for partition in partitions:
        position, before = positions.get(partition), there.get(partition)
        if position is None:
            what = "nothing"
        elif is_same(partition, position):
            what = "nothing: it is the same"
        else:
            what = becomes(position) + (" (back)" if before and before.next > position.next else "")
        rows.append((partition, _shown(position), (position and position.offset) or "-", _shown(before), what))
    right = ("partition", "sequence number", "offset", "there now")
    columns = (*right, "would be written" if dry_run else "written")
    console().print(table(columns, rows, title=str(group), right=right))


def _shown(position: Position | None) -> str:
    return "-" if position is None or position.sequence_number < 0 else str(position.sequence_number)


def resolved(
    checkpoints: Mapping[str, StoredCheckpoint], options: Options, states: Mapping[str, PartitionState], option: str
) -> dict[str, Position]:
    """The positions of `checkpoints` that have one, by partition; an offset alone is resolved by the hub.

    Raises `OptionError`, which names `option` and the partition, if the hub cannot resolve it.
    """

    def position(partition: str) -> Position | None:
        stored = checkpoints[partition]
        if stored.sequence_number is not None:
            # The start of a partition is no event's offset.
            return Position(stored.sequence_number, None if stored.offset == START_OFFSET else stored.offset)
        if stored.offset is None:
            return None
        if partition not in states:
            raise OptionError(
                f"{option} has an offset of partition {partition}, and the hub has partitions {', '.join(states)}"
            )
        address = PartitionAddress(options.connection, options.consumer_group, partition)
        try:
            return position_of(stored.offset, address, states[partition], RESOLVE_TIMEOUT)
        except HubUnavailableError as unknown:
            raise OptionError(
                f"{option} has only an offset of partition {partition}, and the hub does not have its sequence number: "
                f"{unknown}. Delete that checkpoint's blob if the hub was recreated since"
            ) from None

    known = in_parallel(position, sorted(checkpoints, key=partition_order))
    return {partition: each for partition, each in known.items() if each is not None}


def in_parallel(ask: Callable[[str], _T], partitions: Sequence[str]) -> dict[str, _T]:
    """The result of `ask`, which waits for the hub, for each of `partitions`. Raises what it raises."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(partitions, pool.map(ask, partitions), strict=True))


def print_rewound(partitions: Sequence[str]) -> None:
    """Print which `partitions` moved back, and what that means for a table written exactly once."""
    if partitions:
        say(
            f"Partition {', '.join(partitions)} goes back, and events are read again. For a table that is written "
            "exactly once (once, write_once) all events up to its last one count as written, and it gets none of them: "
            "use spark_ehbalance.merge, or another source."
        )


def backward(positions: Mapping[str, Position], there: Mapping[str, Position], group: Group) -> str | None:
    """The error if `positions` would move those that are `there` back; None if none would."""
    back = [(p, there[p], each) for p, each in positions.items() if p in there and each.next < there[p].next]
    if not back:
        return None
    shown = ", ".join(f"partition {p} from {before.next} to {each.next}" for p, before, each in back[:3])
    more = f" and {len(back) - 3} more" if len(back) > 3 else ""
    return f"{group} would go back: {shown}{more}. With --allow-back these events are read again; nothing was written"
