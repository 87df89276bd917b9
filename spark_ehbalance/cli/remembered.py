"""`ehbalance init --from-checkpoint`: a lease table with the positions that the queries' own checkpoints know."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from spark_ehbalance.cli.common import now_ms, operator, warn
from spark_ehbalance.errors import EhBalanceError, OptionError, StoreError
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import ReplaceTables, Restore, Transition, apply
from spark_ehbalance.source.continuity import LoggedBatch, Memory, restored, skipped
from spark_ehbalance.source.offsets import HeldPosition, group_name
from spark_ehbalance.source.options import Options, checked_checkpoint, checked_location
from spark_ehbalance.source.spark_checkpoint import read_checkpoint
from spark_ehbalance.stores.base import LeaseStore, commit_and_record, record
from spark_ehbalance.stores.opening import open_store
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import Position

FromCheckpoint = Annotated[
    list[str] | None,
    typer.Option(
        "--from-checkpoint",
        metavar="DIR",
        help="The checkpointLocation of a query of the group, whose positions the table gets; may be repeated.",
    ),
]
Replaces = Annotated[
    str | None,
    typer.Option(
        metavar="TABLE",
        help="With --from-checkpoint: the lost table, where the queries have last read with more than one. Or: none.",
    ),
]

_WHY = "from the queries' checkpoints"

#: Times that a change is tried which others keep from being written.
_TRIES = 5


def remembered(checkpoints: Sequence[str], replaces: str | None, options: Options) -> Memory:
    """What the queries with these checkpoints know of the hub of `options`, and what their lease table's history adds.

    `replaces` is that table, and must be given where they have last read with several. Raises `OptionError`.
    """
    if not checkpoints:
        raise OptionError("--replaces needs --from-checkpoint: the positions are those of the queries' checkpoints")
    places = dict.fromkeys(map(checked_checkpoint, checkpoints))
    logs = [log for each in places for log in _of_hub(each, options)]
    tables = sorted({_table(log) for log in logs})
    wanted = replaces if replaces in (None, "none") else checked_location(str(replaces), "--replaces")
    if wanted not in (None, *tables) or (wanted is None and len(tables) > 1):
        given = "is not given" if replaces is None else f"={wanted} is wrong"
        raise OptionError(f"--replaces {given}: the queries have last read with {', '.join(tables)}")
    table = wanted or tables[0]
    memory = functools.reduce(Memory.joined, (Memory.of(*log) for log in logs if _table(log) == table))
    return replace(memory, places=memory.joined(_history(table, options)).places)


def _of_hub(checkpoint: str, options: Options) -> list[list[LoggedBatch]]:
    logs, hub = read_checkpoint(checkpoint, options.storage_options), options.connection.hub.lower()
    own = [log for log in logs if log[-1].end.hub in (hub, "")]
    hubs = sorted({log[-1].end.hub or "one of an earlier version" for log in logs})
    if not own or (len(own) > 1 and any(not log[-1].end.hub for log in own)):
        raise OptionError(
            f"--from-checkpoint={checkpoint} is wrong: its sources have read {', '.join(hubs)}; allowed is the "
            f"checkpoint of a query that has read event hub {hub}, with offsets of this version if it has several"
        )
    return own


def _table(log: Sequence[LoggedBatch]) -> str:
    """Where the lease table is by which the last batch was read."""
    end = log[-1].end
    return end.table.location if end.table else end.group or "none"


def _history(table: str, options: Options) -> Memory:
    """What the last change of owner of each partition says, where the history has outlived its table: a batch may
    have been broken off by it, or left out of a replay, which Spark takes for finished all the same."""
    if "/" not in table:
        return Memory()
    try:
        with open_store(table, options.storage_options) as store:
            return Memory(_last_places(store.history()))
    except (OptionError, StoreError):
        return Memory()


def _last_places(changes: Sequence[OwnershipChange]) -> dict[str, HeldPosition]:
    last = {each.partition: each for each in changes if each.partition is not None}
    return {
        partition: HeldPosition(each.epoch, each.sequence_number + 1)
        for partition, each in last.items()
        if each.epoch is not None and each.sequence_number is not None
    }


def check_places(memory: Memory, states: Mapping[str, PartitionState]) -> None:
    """Raise `OptionError` where a checkpoint cannot be that of a query of this hub."""
    for partition, place in memory.places.items():
        state = states.get(partition)
        if state is None or place.next > state.end:
            ends = f"ends before {state.end}" if state else f"has partitions {', '.join(states)}"
            raise OptionError(
                f"--from-checkpoint is of another event hub, or the hub was made anew: it has read up to {place.next} "
                f"of partition {partition}, and the hub {ends}"
            )


def put_back(
    store: LeaseStore, location: str, group: Group, memory: Memory, states: Mapping[str, PartitionState]
) -> str:
    """Write, in one commit, what `memory` knows and the table at `location` does not, and that it takes the lost one's
    place; makes the table where there is none. Returns what was done, in words.

    Raises `EhBalanceError` if the table would skip events: then nothing was changed.
    """
    if not store.exists():
        said = _said(location, memory, Snapshot(group), states)
        made = apply(Snapshot(group), said)
        store.create(group, made.after)
        found, table = store.read(), made.after.table
        if found.table is not None and table is not None and found.table.id == table.id:
            record(store, made, warn)
            return _told(said, memory)
    store.create(group)
    for _ in range(_TRIES):
        found = store.read()
        said = _said(location, memory, found, states)
        outcome = commit_and_record(store, found, said, warn)
        if not any(isinstance(each.transition, Restore) for each in outcome.refused):
            return _told(said, memory)
    raise EhBalanceError("others keep changing the table: try again")


def _said(location: str, memory: Memory, found: Snapshot, states: Mapping[str, PartitionState]) -> list[Transition]:
    if found.table is None or not found.table.covers(memory.lineages):
        _check_skipped(memory, found)
    by, at_ms = replace(operator(), incarnation=uuid.uuid4().hex), now_ms()
    # No row is beyond what they know, or it is their own table's: where an epoch is older, the checkpoints know better.
    said: list[Transition] = list(restored(memory, found, by, at_ms, _WHY, older=True))
    # Nobody knows these, so nobody has read them as far as Spark's checkpoints go back.
    said += [
        Restore(by=by, at_ms=at_ms, partition=p, epoch=0, checkpoint=Position.before(states[p].begin), why=_WHY)
        for p in states
        if p not in memory.places and p not in found.leases
    ]
    # Offsets of earlier versions know the table by its place.
    place = {group_name(location)} if found.table is None and found.leases else set()
    return [*said, ReplaceTables(by=by, at_ms=at_ms, tables=memory.lineages | place)]


def _check_skipped(memory: Memory, found: Snapshot) -> None:
    between = skipped(memory, found)
    if not between:
        return
    shown = ", ".join(f"{first} to {last} of partition {p}" for p, (first, last) in between.items())
    seeks = "; ".join(f"ehbalance seek TABLE {p} --to {first}" for p, (first, _) in between.items())
    raise EhBalanceError(
        f"the table would skip events {shown}, as it goes on after them; nothing was changed. Have it go on where the "
        f"queries have ended, and try again: {seeks}"
    )


def _told(said: Sequence[Transition], memory: Memory) -> str:
    back = [each.partition for each in said if isinstance(each, Restore)]
    unknown = [partition for partition in back if partition not in memory.places]
    known = f" {len(back) - len(unknown)} go on where the checkpoints' batches have ended."
    if not unknown:
        return known
    return (
        f"{known} No checkpoint knows partitions {', '.join(unknown)}: they begin at their first retained event, "
        "unless `ehbalance seek` says otherwise."
    )
