"""`ehbalance init --from-checkpoint`: a lease table with the positions that the queries' own checkpoints know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from spark_ehbalance.cli.common import now_ms, operator, order
from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.leases.delta import DeltaStore
from spark_ehbalance.leases.model import Position
from spark_ehbalance.leases.transitions import Restore
from spark_ehbalance.options import checked_location
from spark_ehbalance.source.continuity import Memory, restored, skipped
from spark_ehbalance.source.offsets import group_name
from spark_ehbalance.source.spark_checkpoint import LoggedBatch, read_checkpoint

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
        metavar="TABLE", help="With --from-checkpoint: the lost table, where checkpoints know of more than one."
    ),
]

_WHY = "from the queries' checkpoints"


def remembered(checkpoints: list[str], replaces: str | None, storage_options: Mapping[str, str]) -> Memory:
    """What the queries with these checkpoints know of the group that shared by the table at `replaces`, which must be
    given where they know of several. Raises `OptionError`."""
    if not checkpoints:
        raise OptionError("--replaces needs --from-checkpoint: the positions are those of the queries' checkpoints")
    places = [checked_location(each, "--from-checkpoint") for each in checkpoints]
    batches = [batch for each in places for batch in read_checkpoint(each, storage_options)]
    tables = {batch.end.group: _named(batch) for batch in batches}
    wanted = next(iter(tables)) if replaces is None else group_name(checked_location(replaces, "--replaces"))
    if wanted not in tables or (replaces is None and len(tables) > 1):
        raise OptionError(f"--replaces={replaces} is wrong: the checkpoints know of {', '.join(tables.values())}")
    own = [batch for batch in batches if batch.end.group == wanted]
    return Memory.of([each.end for each in own if each.finished], [each.end for each in own if not each.finished])


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


def put_back(store: DeltaStore, memory: Memory, states: Mapping[str, PartitionState]) -> str:
    """Write what `memory` knows and the table does not, and that the table takes the place of the lost one; returns
    what was done, in words. Raises `EhBalanceError` if the table would skip events."""
    found, by, at_ms = store.read(), operator(), now_ms()
    beyond = {} if store.identity().covers(memory.lineages) else skipped(memory, found)
    for partition, (first, last) in beyond.items():
        raise EhBalanceError(
            f"partition {partition} would skip events {first} to {last}, because the table goes on after them; nothing "
            f"was changed. Have it go on where the queries have ended: `ehbalance seek` {partition} --to {first}"
        )
    said = restored(memory, found, by, at_ms, _WHY)
    # Nobody knows these, so nobody has read them as far as Spark's checkpoints go back.
    unknown = [each for each in states if each not in memory.places and each not in found.leases]
    said += [
        Restore(by=by, at_ms=at_ms, partition=p, epoch=0, checkpoint=Position.before(states[p].begin), why=_WHY)
        for p in unknown
    ]
    order(store, said)
    store.replace(memory.lineages)
    known = f" {len(said) - len(unknown)} go on where the checkpoints' batches have ended."
    if not unknown:
        return known
    return (
        f"{known} No checkpoint knows partitions {', '.join(unknown)}: they begin at their first retained event, "
        "unless `ehbalance seek` says otherwise."
    )


def _named(batch: LoggedBatch) -> str:
    if batch.end.table:
        return batch.end.table.location
    return f"a table whose address they do not tell ({batch.end.group})" if batch.end.group else "none"
