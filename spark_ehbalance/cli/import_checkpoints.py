"""`ehbalance import-checkpoints`: positions of other consumers of a hub into a lease table."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from spark_ehbalance.cli.blob_group import container_options, opened
from spark_ehbalance.cli.common import (
    check_group,
    check_hub_of,
    check_positions,
    hub_states,
    now_ms,
    operator,
    say,
    warn,
    write_together,
)
from spark_ehbalance.cli.migration import (
    MoveOptions,
    backward,
    checkpoints,
    consumers,
    listed,
    print_positions,
    print_rewound,
    readers,
    resolved,
)
from spark_ehbalance.cli.options import (
    BlobNamespace,
    HubOptions,
    LeaseTable,
    StorageOptions,
    Why,
    access_panel,
    pairs,
)
from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.leases.model import Author
from spark_ehbalance.leases.orders import Seek
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import NoteHub, Restore, Transition
from spark_ehbalance.source.offsets import HubReference
from spark_ehbalance.source.options import Options, checked_checkpoint, storage_options
from spark_ehbalance.source.scala_checkpoint import read_scala_checkpoint
from spark_ehbalance.values.position import Position

_BLOBS, _SPARK, _OPTION = "--from-blobs", "--from-spark", "--from-option"

#: Why the positions cannot be imported into a container.
_LACKS = "whose consumers continue at its own checkpoints: allowed is a lease table in Delta"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Where the positions come from."""

    from_blobs: Annotated[
        str | None, typer.Option(_BLOBS, metavar="ADDRESS", help="Container of the Azure SDKs' checkpoint store.")
    ] = None
    from_spark: Annotated[
        str | None, typer.Option(_SPARK, metavar="DIR", help="Or a checkpointLocation of the Scala connector.")
    ] = None
    from_option: Annotated[
        list[str] | None, access_panel(_OPTION, metavar="NAME=VALUE", help="As --storage-option, for the source.")
    ] = None
    blob_namespace: BlobNamespace = None

    def checked(self) -> str:
        """The source with its option, for errors. Raises `OptionError` unless it is one."""
        if (self.from_blobs is None) is (self.from_spark is None):
            raise OptionError(f"{_BLOBS} and {_SPARK}: allowed is one of them")
        return f"{_BLOBS}={self.from_blobs}" if self.from_blobs else f"{_SPARK}={self.from_spark}"

    def read(
        self, options: Options, storage: StorageOptions
    ) -> tuple[dict[str, Position], HubReference, Mapping[str, PartitionState]]:
        """The positions, which hub it is, and its partitions. Raises `EhBalanceError`."""
        if self.from_blobs:
            given = container_options(self.from_option, _OPTION, storage.storage_option)
            return _from_blobs(self.from_blobs, self.blob_namespace, options, given)
        given = pairs(self.from_option, _OPTION) or pairs(storage.storage_option)
        return _from_spark(str(self.from_spark), options, given), *hub_states(options)


def import_checkpoints(
    lease_table: LeaseTable,
    hub: HubOptions,
    source: SourceOptions,
    move: MoveOptions,
    storage: StorageOptions,
    why: Why = "",
) -> None:
    """Have a group of queries continue where other consumers of its hub have ended.

    These are EventProcessorClients of any language, or a query of the Scala connector. Stop them first. A missing table
    is made. Partitions without a position begin at startingPosition. With --force queries may own partitions: their
    running batches still reach the sink, as with `seek --force`.
    """
    named = source.checked()
    options = hub.options(lease_table, storage)
    group = options.group
    with storage.open(lease_table, lacks=_LACKS, identity=options.connection.identity) as store:
        positions, current, states = source.read(options, storage)
        check_positions(positions, states, named)
        found = store.read() if store.exists() else Snapshot(group)
        check_group(found, group, lease_table)
        check_hub_of(found, current, lease_table)

        def show(before: Snapshot) -> None:
            there = checkpoints(before)
            print_positions(
                group,
                states,
                positions,
                there,
                lambda partition, position: partition in there and there[partition].next == position.next,
                lambda position: f"continues at {position.next}",
                dry_run=move.dry_run,
            )

        if move.dry_run:
            show(found)
        _check(found, positions, move)
        if not move.dry_run:
            author = replace(operator(), incarnation=uuid.uuid4().hex)
            reason = f"imported from {named.partition('=')[2]}" + (f": {why}" if why else "")

            def decide(now: Snapshot) -> Sequence[Transition]:
                _check(now, positions, move)
                orders = _orders(now, positions, author, reason, force=move.force)
                return [*orders, *_rest(now, states, positions, author, reason, current.created_ms)]

            found = write_together(store, group, decide).before
            show(found)
    _print_remarks(checkpoints(found), positions, states)
    say("Nothing was written." if move.dry_run else f"Queries with {lease_table} continue as shown.")


def _from_blobs(
    text: str, namespace: str | None, options: Options, given: Mapping[str, str]
) -> tuple[dict[str, Position], HubReference, Mapping[str, PartitionState]]:
    with opened(text, options.group, namespace, given, _BLOBS) as found:
        stored = {**found.checkpoints, **found.legacy()}
        if not stored:
            raise OptionError(
                f"{_BLOBS}={text} is wrong: it has no checkpoints of {found.group}, but of {found.others()}"
            )
    if reading := consumers(found):
        warn(f"{listed(reading)} may be reading with {text}: stop these consumers first, or events are read twice")
    hub, states = hub_states(options)  # after the positions, which must not seem to be beyond the hub's end
    return resolved(stored, options, states, f"{_BLOBS}={text}"), hub, states


def _from_spark(text: str, options: Options, given: Mapping[str, str]) -> dict[str, Position]:
    location = checked_checkpoint(text, _SPARK)
    numbers = read_scala_checkpoint(location, storage_options(given, {}, None), options.connection.hub, _SPARK)
    return {partition: Position.before(number) for partition, number in numbers.items()}


def _check(found: Snapshot, positions: Mapping[str, Position], move: MoveOptions) -> None:
    """Raise `EhBalanceError` if somebody may be reading, or positions would move back, and that is not allowed."""
    if (reading := readers(found)) and not move.force:
        raise EhBalanceError(
            f"{listed(reading)} may be reading with the lease table: stop the queries first, or use --force; nothing "
            "was written"
        )
    if not move.allow_back and (problem := backward(positions, checkpoints(found), found.group)):
        raise EhBalanceError(problem)


def _orders(
    found: Snapshot, positions: Mapping[str, Position], by: Author, why: str, *, force: bool
) -> list[Transition]:
    """What makes the group continue at `positions`. Raises `EhBalanceError` for a partition with an owner, unless
    `force`: a batch that a killed query has logged would be run again."""
    at_ms = now_ms()
    orders: list[Transition] = []
    for partition, position in positions.items():
        lease = found.leases.get(partition)
        if lease is None or lease.checkpoint is None:
            epoch = lease.epoch if lease else 0
            orders.append(Restore(by=by, at_ms=at_ms, partition=partition, epoch=epoch, checkpoint=position, why=why))
        elif lease.checkpoint.next != position.next:
            if lease.owner is not None and not force:
                raise EhBalanceError(
                    f"partition {partition} is owned by {lease.owner}, which has not given it back: start that query "
                    "and stop it, or use --force, with which a batch that it has logged still reaches its sink; "
                    "nothing was written"
                )
            orders.append(Seek(by=by, at_ms=at_ms, partition=partition, position=position, force=force, why=why))
    return orders


def _rest(
    found: Snapshot,
    states: Mapping[str, PartitionState],
    positions: Mapping[str, Position],
    by: Author,
    why: str,
    hub_created_ms: int | None,
) -> list[Transition]:
    """The hub, and its partitions without a position. Without a row they would count as added to it later, and be read
    from their first event."""
    at_ms = now_ms()
    rest: list[Transition] = [
        Restore(by=by, at_ms=at_ms, partition=each, epoch=0, checkpoint=None, why=why)
        for each in states
        if each not in positions and each not in found.leases
    ]
    if hub_created_ms is not None:
        rest.append(NoteHub(by=by, at_ms=at_ms, created_ms=hub_created_ms))
    return rest


def _print_remarks(
    there: Mapping[str, Position], positions: Mapping[str, Position], states: Mapping[str, PartitionState]
) -> None:
    print_rewound([p for p, each in positions.items() if p in there and each.next < there[p].next])
    if unknown := [p for p in states if p not in positions and p not in there]:
        say(f"No position is known of partition {', '.join(unknown)}: the queries' startingPosition decides.")
    if gone := [p for p, each in positions.items() if each.next < states[p].begin]:
        say(f"Events that partition {', '.join(gone)} would continue with have expired: failOnDataLoss decides.")
