"""`ehbalance report`: a picture of what a group has done, from its history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from spark_ehbalance.cli.common import LeaseTable, StorageOption, iso, open_store
from spark_ehbalance.cli.picture import Picture, Segment, html, moves_of, segments_of, split
from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.position import partition_order


def report(
    lease_table: LeaseTable,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The HTML file to write.")] = Path("report.html"),
    storage_option: StorageOption = None,
) -> None:
    """Draw who owned which partition of a group and when, from its history, into an HTML file."""
    with open_store(lease_table, storage_option) as store:
        group, history = store.read().group, store.history()
    if not history:
        raise EhBalanceError(f"the lease table {lease_table} has no history yet")
    save(out, html(history_picture(group, history)))


def save(path: Path, page: str) -> None:
    """Write `page`, and say where. Raises `EhBalanceError`."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise EhBalanceError(f"{path} could not be written: {error.strerror}") from None
    typer.echo(f"Drawn into {path}.", err=True)  # what programs read is on the other stream


def history_picture(group: Group, history: Sequence[OwnershipChange]) -> Picture:
    """The picture of a group's history, up to its last entry."""
    changes, marks = split(history)
    times = [each.at_ms for each in history if each.at_ms] or [0]  # a row without a time has 0
    begin, end = min(times), max(times)
    end += max(1000, (end - begin) // 20)  # so that what the last one began can be seen
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
        dated=True,
    )


def _counts(segments: Sequence[Segment], end: float) -> list[tuple[float, Mapping[str, float]]]:
    """How many partitions each owner has, from change to change, to the end of the picture."""
    steps: dict[float, Counter[str]] = {}
    for segment in segments:
        steps.setdefault(segment.start, Counter())[segment.owner] += 1
        if segment.end < end:  # there nothing ends but the picture
            steps.setdefault(segment.end, Counter())[segment.owner] -= 1
    counts: list[tuple[float, Mapping[str, float]]] = []
    owned = Counter[str]()
    for at in sorted(steps):
        for owner, change in steps[at].items():
            owned[owner] += change
        counts.append((at, dict(owned)))
    return [*counts, (end, dict(owned))]
