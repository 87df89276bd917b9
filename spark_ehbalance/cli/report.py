"""`ehbalance history` and `report`: the history of a group, as a table or as a picture."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from spark_ehbalance.cli.common import console, iso, table
from spark_ehbalance.cli.options import AsJson, LeaseTable, StorageOptions
from spark_ehbalance.cli.picture import Picture, html
from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.timeline import Segment, moves_of, segments_of, split
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import partition_order

#: Why there is no history of consumers of the Azure SDKs.
_LACKS = "which keeps the present state alone: there is no history"


def report(
    lease_table: LeaseTable,
    storage: StorageOptions,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The HTML file to write, or to replace; report.html if it is new."),
    ] = None,
) -> None:
    """Draw from its history who owned which partition of a group when, into an HTML file."""
    with storage.open(lease_table, lacks=_LACKS) as store:
        group, changes = store.read().group, store.history()
    if not changes:
        raise EhBalanceError(f"the lease table {lease_table} has no history yet")
    save(out or _new("report.html"), html(history_picture(group, changes)))


def history(
    lease_table: LeaseTable,
    storage: StorageOptions,
    partition: Annotated[str | None, typer.Option(help="Only this partition.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show every change of owner in a group and every order of an operator, oldest first."""
    with storage.open(lease_table, lacks=_LACKS) as store:
        changes = store.history()
        if not changes:
            store.read()  # says so if there is no such table
    changes = [each for each in changes if partition in (None, each.partition)]
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in changes], indent=2))
        return
    columns = ("time", "partition", "event", "from", "to", "epoch", "read up to", "by", "why")
    rows = [
        (
            iso(each.at_ms),
            each.partition,
            each.event,
            each.owner_before or "nobody",
            each.owner or "nobody",
            each.epoch,
            each.sequence_number,
            each.by,
            each.why,
        )
        for each in changes
    ]
    console().print(table(columns, rows))


def _new(name: str) -> Path:
    """A file that is not there yet. Raises `OptionError`."""
    if Path(name).exists():
        raise OptionError(f"{name} is there already: --out {name} replaces it, and --out FILE writes another one")
    return Path(name)


def save(path: Path, page: str) -> None:
    """Write `page` to `path` and print where it is. Raises `EhBalanceError`."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise EhBalanceError(f"{path} could not be written: {error.strerror}") from None
    typer.echo(f"Drawn into {path}.", err=True)  # the other stream is for output that programs read


def history_picture(group: Group, rows: Sequence[OwnershipChange]) -> Picture:
    """The picture of a group's history, up to its last row."""
    changes, marks = split(rows)
    times = [each.at_ms for each in rows if each.at_ms] or [0]  # a row without a time has 0
    begin, end = min(times), max(times)
    end += max(1000, (end - begin) // 20)  # so that what began with the last row is visible
    segments = segments_of(changes, {}, begin, end)
    moves = [move for move in moves_of(changes, {}) if move[0] >= begin]
    partitions = sorted({each.partition for each in changes if each.partition is not None}, key=partition_order)
    return Picture(
        title=f"{group}",
        subtitle=f"{len(partitions)} partitions, {len(moves)} moves from {iso(begin)} to {iso(end)}",
        partitions=partitions,
        segments=segments,
        moves=moves,
        marks=[mark for mark in marks if mark.at >= begin],
        loads=_counts(segments, end),
        load_title="Partitions per owner",
        begin=begin,
        end=end,
    )


def _counts(segments: Sequence[Segment], end: float) -> list[tuple[float, Mapping[str, float]]]:
    """The number of partitions of each owner after each change, up to the end of the picture."""
    steps: dict[float, Counter[str]] = {}
    for segment in segments:
        steps.setdefault(segment.start, Counter())[segment.owner] += 1
        if segment.end < end:  # at `end` only the picture ends
            steps.setdefault(segment.end, Counter())[segment.owner] -= 1
    counts: list[tuple[float, Mapping[str, float]]] = []
    owned = Counter[str]()
    for at in sorted(steps):
        for owner, change in steps[at].items():
            owned[owner] += change
        counts.append((at, dict(owned)))
    return [*counts, (end, dict(owned))]
