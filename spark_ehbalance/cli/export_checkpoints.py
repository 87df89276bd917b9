"""`ehbalance export-checkpoints`: positions of a lease table to other consumers of the hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import typer

from spark_ehbalance.cli.blob_group import BlobGroup, container_options, opened
from spark_ehbalance.cli.common import check_group, check_hub_of, check_positions, hub_states, say, warn
from spark_ehbalance.cli.migration import (
    RESOLVE_TIMEOUT,
    MoveOptions,
    backward,
    checkpoints,
    consumers,
    in_parallel,
    listed,
    print_positions,
    readers,
    resolved,
)
from spark_ehbalance.cli.options import BlobNamespace, HubOptions, LeaseTable, StorageOptions, access_panel
from spark_ehbalance.errors import ConflictError, EhBalanceError, OptionError, StoreUnavailableError
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.hub.receiver import PartitionAddress
from spark_ehbalance.hub.resolve import find_offset
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.source.options import Options
from spark_ehbalance.values.position import START_OFFSET, Position
from spark_ehbalance.values.secrets import shown as shown_text

_BLOBS, _POSITIONS = "--to-blobs", "--starting-positions"

#: Why the positions cannot be exported from a container.
_LACKS = "which has its checkpoints already: allowed is a lease table in Delta"


def export_checkpoints(
    lease_table: LeaseTable,
    hub: HubOptions,
    move: MoveOptions,
    storage: StorageOptions,
    to_blobs: Annotated[
        str | None, typer.Option(_BLOBS, metavar="ADDRESS", help="Container of the Azure SDKs' checkpoint store.")
    ] = None,
    starting_positions: Annotated[
        bool, typer.Option(_POSITIONS, help="Or print what the Scala connector takes as eventhubs.startingPositions.")
    ] = False,
    to_option: Annotated[
        list[str] | None, access_panel("--to-option", metavar="NAME=VALUE", help="As --storage-option, for the target.")
    ] = None,
    blob_namespace: BlobNamespace = None,
) -> None:
    """Have other consumers of a group's hub continue where its queries have ended.

    These are EventProcessorClients of any language, or a query of the Scala connector. Stop the queries first. In
    partitions that the queries have not begun, the consumers' own starting position decides.
    """
    if (to_blobs is not None) is starting_positions:
        raise OptionError(f"{_BLOBS} and {_POSITIONS}: allowed is one of them")
    target_options = container_options(to_option, "--to-option", storage.storage_option)
    if hub.fully_qualified_namespace and not storage.credential:
        storage = replace(storage, credential="default")
    with storage.open(lease_table, lacks=_LACKS) as store:
        found = store.read()
    if to_blobs is None:
        typer.echo(_starting_positions(found, hub.event_hub_name))
        _warn_of_readers(found)
        return
    options = hub.options(lease_table, storage)
    group = options.group
    check_group(found, group, lease_table)
    positions = checkpoints(found)
    current, states = hub_states(options)
    check_hub_of(found, current, lease_table)
    check_positions(positions, states, f"the lease table {lease_table}")
    with opened(to_blobs, group, blob_namespace, target_options, _BLOBS) as blobs:
        there = resolved(blobs.checkpoints, options, states, f"{_BLOBS}={to_blobs}")
        reading = consumers(blobs)
        if reading and not move.force:
            problem: str | None = (
                f"{listed(reading)} may be reading with {to_blobs}: stop these consumers first, or use "
                "--force if they are stopped already; nothing was written"
            )
        else:
            problem = None if move.allow_back else backward(positions, there, group)
        if problem is None and not (move.dry_run and reading):  # looking offsets up disconnects readers
            positions = _with_offsets(found, options, states)
        if problem is None and not move.dry_run:
            _write(positions, blobs)
        if problem is None or move.dry_run:
            print_positions(group, states, positions, there, blobs.has, _becomes, dry_run=move.dry_run)
        if problem is not None:
            raise EhBalanceError(problem)
    _warn_of_readers(found)
    if unknown := [p for p in states if p not in positions and p not in there]:
        say(f"No position is known of partition {', '.join(unknown)}: the consumers' own starting position decides.")
    say("Nothing was written." if move.dry_run else f"Consumers with {to_blobs} continue as shown.")


def _warn_of_readers(found: Snapshot) -> None:
    if reading := readers(found):
        warn(f"{listed(reading)} may be reading: stop these queries first, or events are read twice")


def _starting_positions(found: Snapshot, hub: str | None) -> str:
    """The next event of each partition, as the connector's `EventHubsConf` reads starting positions."""
    if hub is None or hub.lower() != found.group.hub:
        given = " is not set" if hub is None else f"={shown_text(hub)} is wrong"
        raise OptionError(
            f"--event-hub-name{given}: allowed is {found.group.hub}, with capitals as the connector's configuration "
            "has it: it takes no notice of positions for another spelling"
        )
    return json.dumps(
        {
            json.dumps({"ehName": hub, "partitionId": int(partition)}): {
                "offset": None,
                "seqNo": position.next,
                "enqueuedTime": None,
                "isInclusive": True,
            }
            for partition, position in checkpoints(found).items()
        },
        indent=2,
    )


def _with_offsets(found: Snapshot, options: Options, states: Mapping[str, PartitionState]) -> dict[str, Position]:
    """The positions with their offsets, which some SDKs need. Raises `EhBalanceError` if one is not found."""
    positions = checkpoints(found)

    def with_offset(partition: str) -> Position:
        position, state = positions[partition], states[partition]
        if position.offset is not None:
            return position
        if position.next <= state.begin:
            return Position(position.sequence_number, START_OFFSET)
        if position.next == state.end:
            return Position(position.sequence_number, state.last_offset)
        address = PartitionAddress(options.connection, options.consumer_group, partition)
        # Queries that read all the same have the epoch as their owner level, and open again.
        epoch = found.leases[partition].epoch
        offset = find_offset(address, position.sequence_number, epoch, RESOLVE_TIMEOUT)
        if offset is None:
            raise EhBalanceError(
                f"partition {partition}: the offset of event {position.sequence_number} was not found at the hub; "
                "nothing was written"
            )
        return Position(position.sequence_number, offset)

    return in_parallel(with_offset, list(positions))


def _becomes(position: Position) -> str:
    return f"a checkpoint {f'at {position.sequence_number}' if position.next > 0 else 'before the first event'}"


def _write(positions: Mapping[str, Position], blobs: BlobGroup) -> None:
    """Write the blobs one by one. Raises `StoreError`, which names those that are written."""
    written = list[str]()
    for partition, position in positions.items():
        if blobs.has(partition, position):
            continue
        try:
            blobs.write(partition, position)
        except (ConflictError, StoreUnavailableError) as error:
            done = f"partition {', '.join(written)}" if written else "no partition"
            # The write may have succeeded although its response was lost.
            perhaps = f", perhaps {partition}" if isinstance(error, StoreUnavailableError) else ""
            raise type(error)(f"{error}. Written is {done}{perhaps}: run it again") from None
        written.append(partition)
