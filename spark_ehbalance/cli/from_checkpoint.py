"""`ehbalance init --from-checkpoint`: restores a lease table from the queries' own Spark checkpoints."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import typer

from spark_ehbalance.cli.common import now_ms, operator, write_together
from spark_ehbalance.errors import EhBalanceError, OptionError, StoreError
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import NoteHub, Outcome, ReplaceTables, Restore, Transition
from spark_ehbalance.source.continuity import LoggedBatch, RecordedProgress, restore_transitions, skipped_events
from spark_ehbalance.source.offsets import EpochPosition, HubReference, group_name
from spark_ehbalance.source.options import Options, checked_checkpoint, checked_location
from spark_ehbalance.source.spark_checkpoint import read_checkpoint
from spark_ehbalance.stores.base import LeaseStore
from spark_ehbalance.stores.opening import open_store
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.locations import may_get_credentials
from spark_ehbalance.values.position import Position

FromCheckpoint = Annotated[
    list[str] | None,
    typer.Option(
        "--from-checkpoint",
        metavar="DIR",
        help="The checkpointLocation of a query of the group, for its positions. May be repeated.",
    ),
]
Replaces = Annotated[
    str | None,
    typer.Option(
        metavar="TABLE",
        help="With --from-checkpoint: the lost table, or none; needed if the queries last used several.",
    ),
]

_WHY = "from the queries' checkpoints"

#: Added to the last epochs that are known where there may have been others: more than there can have been changes of
#: owner. What a checkpoint has under any of them does not count any more.
_EPOCH_MARGIN = 1000


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the queries' checkpoints and their lease table's history have of a group. For partitions of which the
    history has nothing, `doubtful` is as in `RecordedProgress.confirmed`."""

    progress: RecordedProgress
    doubtful: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def recover(checkpoints: Sequence[str], replaces: str | None, options: Options) -> Recovered:
    """Read the queries' checkpoints and their lease table's history, for the hub of `options`.

    `replaces` is that lease table; it must be given if the queries last used several. Raises `OptionError`.
    """
    if not checkpoints:
        raise OptionError("--replaces needs --from-checkpoint: the positions are those of the queries' checkpoints")
    folders = dict.fromkeys(map(checked_checkpoint, checkpoints))
    by_folder = {each: _of_hub(each, options) for each in folders}
    _check_copies(by_folder)
    logs = [log for each in by_folder.values() for log in each]
    tables = sorted({_table(log) for log in logs})
    wanted = replaces if replaces in (None, "none") else checked_location(str(replaces), "--replaces")
    if wanted not in (None, *tables) or (wanted is None and len(tables) > 1):
        given = "is not given" if replaces is None else f"={wanted} is wrong"
        raise OptionError(f"--replaces {given}: the queries have last read with {', '.join(tables)}")
    table = wanted or tables[0]
    if wanted is None and not may_get_credentials(table, options.lease_table or ""):
        raise OptionError(
            f"--replaces is not given: the queries have last read with {table}, in another storage than the new table, "
            "and its history is read with the same credentials if --replaces names it"
        )
    progress = functools.reduce(
        RecordedProgress.merged, (RecordedProgress.from_log(*log) for log in logs if _table(log) == table)
    )
    # A query without a lease table had its partitions for itself.
    return Recovered(progress) if table == "none" else Recovered(*progress.confirmed(_last_changes(table, options)))


def _of_hub(checkpoint: str, options: Options) -> list[list[LoggedBatch]]:
    logs, hub = read_checkpoint(checkpoint, options.storage_options), options.connection.hub.lower()
    own = [log for log in logs if log[-1].end.hub is not None and log[-1].end.hub.name == hub]
    if not own:
        hubs = sorted({log[-1].end.hub.name for log in logs if log[-1].end.hub is not None})
        raise OptionError(
            f"--from-checkpoint={checkpoint} is wrong: its sources have read {', '.join(hubs) or 'nothing'}; allowed "
            f"is the checkpoint of a query that has read event hub {hub}"
        )
    return own


def _check_copies(by_folder: Mapping[str, Sequence[Sequence[LoggedBatch]]]) -> None:
    """Raise `OptionError` for two checkpoints of one query: of copies that have both gone on, each knows of events that
    the other's sink does not have."""
    seen: dict[str, str] = {}
    for folder, logs in by_folder.items():
        for lineage in {log[-1].end.lineage for log in logs} - {""}:
            if lineage in seen:
                raise OptionError(
                    f"--from-checkpoint={folder} is wrong: it and {seen[lineage]} are copies of one checkpoint; "
                    "allowed is the one that is to go on"
                )
            seen[lineage] = folder


def check_same_hub(recovered: Recovered, found: HubReference) -> None:
    """Raise `OptionError` if `recovered` has positions of another hub than `found`, which has the same name."""
    for each in recovered.progress.hubs:
        if each.is_another(found):
            raise OptionError(
                f"--from-checkpoint is wrong: its query has read {each}, and this is {found}: another one, with other "
                "events, in which its positions mean nothing. A new leaseTable begins at the queries' startingPosition"
            )


def _table(log: Sequence[LoggedBatch]) -> str:
    """The location of the lease table that the last batch used."""
    end = log[-1].end
    return end.table.location if end.table else end.group or "none"


def _last_changes(table: str, options: Options) -> dict[str, EpochPosition]:
    """The positions of each partition's last change of owner, if the history still exists."""
    if "/" not in table:
        return {}
    try:
        with open_store(table, options.storage_options) as store:
            last = {each.partition: each for each in store.history() if each.partition is not None}
    except (OptionError, StoreError):
        return {}
    return {
        partition: EpochPosition(each.epoch, each.sequence_number + 1)
        for partition, each in last.items()
        if each.epoch is not None and each.sequence_number is not None
    }


def restore(
    store: LeaseStore,
    location: str,
    group: Group,
    recovered: Recovered,
    states: Mapping[str, PartitionState],
    hub_created_ms: int | None,
) -> str:
    """Write, in one commit, what the table at `location` lacks of `recovered`, and that it replaces the lost table.

    Makes the table if there is none. Returns a sentence about what was done. Raises `EhBalanceError` if the table would
    skip events; then nothing has changed.
    """
    progress, by = recovered.progress, replace(operator(), incarnation=uuid.uuid4().hex)

    def decide(found: Snapshot) -> list[Transition]:
        if found.table is None or not found.table.covers(progress.origins):
            _check_skipped(progress, found)
        at_ms = now_ms()
        # Either no row is ahead of the checkpoints, or the table is their own: a row with an older epoch is stale.
        transitions: list[Transition] = [
            replace(each, epoch=each.epoch + _EPOCH_MARGIN) if each.partition in recovered.doubtful else each
            for each in restore_transitions(progress, found, by, at_ms, _WHY, older=True)
        ]
        # No checkpoint has these, so no query has read them as far back as Spark keeps checkpoints.
        transitions += [
            Restore(by=by, at_ms=at_ms, partition=p, epoch=0, checkpoint=Position.before(states[p].begin), why=_WHY)
            for p in states
            if p not in progress.positions and p not in found.leases
        ]
        # Offsets of earlier versions identify the table by its location.
        location_id = {group_name(location)} if found.table is None and found.leases else set()
        transitions.append(ReplaceTables(by=by, at_ms=at_ms, tables=progress.origins | location_id))
        if hub_created_ms is not None:
            transitions.append(NoteHub(by=by, at_ms=at_ms, created_ms=hub_created_ms))
        return transitions

    return _result(write_together(store, group, decide), recovered)


def _check_skipped(progress: RecordedProgress, found: Snapshot) -> None:
    between = skipped_events(progress, found)
    if not between:
        return
    shown = ", ".join(f"{first} to {last} of partition {p}" for p, (first, last) in between.items())
    seeks = "; ".join(f"ehbalance seek TABLE {p} --to {first}" for p, (first, _) in between.items())
    raise EhBalanceError(
        f"the table would skip events {shown}, as it continues after them; nothing was changed. Move it back to "
        f"where the queries have ended, and try again: {seeks}"
    )


def _result(outcome: Outcome, recovered: Recovered) -> str:
    restored = [each.partition for each in outcome.accepted if isinstance(each, Restore)]
    unknown = [partition for partition in restored if partition not in recovered.progress.positions]
    doubtful = {p: recovered.doubtful[p] for p in restored if p in recovered.doubtful}
    again = [f"{first} to {end - 1} of partition {p}" for p, (first, end) in doubtful.items() if first < end]
    text = f" {len(restored) - len(unknown)} continue "
    if again:
        text += (
            f"after the last batch that is surely finished. Events {', '.join(again)} may be read twice: the table's "
            "history is lost too, which shows whether a batch was read to its end."
        )
    else:
        text += "where the checkpoints' batches have ended."
    if doubtful:
        text += " Events read by queries without a --from-checkpoint are read again."
    if unknown:
        text += (
            f" No checkpoint knows partitions {', '.join(unknown)}: they begin at their first retained event, unless "
            "`ehbalance seek` says otherwise."
        )
    return text
