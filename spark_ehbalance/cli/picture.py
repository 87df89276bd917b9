"""Draws a group's ownership over time, its members' loads and its moves as one HTML file that needs no network.

`simulate --report` and `report` share it. plotly is an optional dependency, imported only for drawing.
"""

from __future__ import annotations

import colorsys
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import gcd
from typing import Any

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.text import plain_lines
from spark_ehbalance.values.position import partition_order

#: Colours that colour-blind people can tell apart (Okabe and Ito, then those of Tol that differ from them).
_PALETTE = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"),
    *("#332288", "#882255", "#999933", "#117733", "#7f7f7f"),
)

#: The events that move a partition, with their name and grey in the chart of moves; colours stand for owners.
_KINDS = {
    "HandOver": ("handed over", "#c9c9c9"),
    "Claim": ("claimed", "#8c8c8c"),
    "Steal": ("stolen", "#333333"),
}

#: The events that change an owner. All others in a history are operators' orders, drawn as marks.
_OWNER_CHANGES = frozenset({*_KINDS, "Release"})

#: The most owners with a legend. With more, names show under the pointer only.
_MOST_IN_LEGEND = 24

#: The most marks with a text: more would not be readable.
_MOST_TEXTS = 14

#: The most partitions whose lanes have gaps and labels.
_MOST_LABELLED = 40

#: Marks of one kind that are closer than this fraction of the whole time share one text.
_SHARED_TEXT = 0.04

_CONFIG = {"displaylogo": False, "responsive": True}

_BINS = 60  # bars of the chart of moves


@dataclass(frozen=True, slots=True)
class Segment:
    """`owner` owned `partition` from `start` to `end`."""

    partition: str
    owner: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Mark:
    """An event in the group, or in one partition of it."""

    at: float
    text: str
    partition: str | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn. Times are in seconds; if `dated`, in milliseconds since 1970.

    `loads` are pairs of a time and each member's value; `load_title` names the values.
    """

    title: str
    subtitle: str
    partitions: Sequence[str]
    segments: Sequence[Segment]
    moves: Sequence[tuple[float, str]]
    marks: Sequence[Mark]
    loads: Sequence[tuple[float, Mapping[str, float]]]
    load_title: str
    begin: float
    end: float
    dated: bool = False


def segments_of(
    changes: Iterable[OwnershipChange], owners: Mapping[str, str | None], begin_ms: int, end_ms: int
) -> list[Segment]:
    """Who owned which partition when, in milliseconds. `owners` are the owners at the beginning, as far as known.

    The changes of a partition are ordered by epoch, because their authors' clocks may differ.
    """
    by_partition: dict[str, list[OwnershipChange]] = defaultdict(list)
    for change in changes:
        if change.partition is not None:
            by_partition[change.partition].append(change)
    segments = []
    for partition in sorted(owners.keys() | by_partition.keys(), key=partition_order):
        rows = sorted(by_partition[partition], key=lambda change: (change.epoch, change.at_ms))
        owner = owners[partition] if partition in owners else rows[0].owner_before
        start = begin_ms
        for change in rows:
            at = max(start, change.at_ms)
            if owner is not None and at > start:
                segments.append(Segment(partition, owner, start, at))
            owner, start = change.owner, at
        if owner is not None and end_ms > start:
            segments.append(Segment(partition, owner, start, end_ms))
    return segments


def split(history: Iterable[OwnershipChange]) -> tuple[list[OwnershipChange], list[Mark]]:
    """Split a history into changes of owner and marks for all other rows."""
    changes, marks = [], []
    for row in history:
        if row.event in _OWNER_CHANGES and row.partition is not None and row.epoch is not None:
            changes.append(row)
        else:
            what = " ".join(str(part) for part in (row.event, row.partition) if part is not None)
            text = f"{what} by {row.by}" + (f": {row.why}" if row.why else "")
            marks.append(Mark(row.at_ms, text, row.partition))
    return changes, marks


def moves_of(changes: Iterable[OwnershipChange], owners: Mapping[str, str | None]) -> list[tuple[float, str]]:
    """The time and the event of each move of a partition to another owner than its last one."""
    last: dict[str, str | None] = dict(owners)
    moves = []
    for change in changes:
        if change.partition is None:
            continue
        before = last.get(change.partition, change.owner_before)
        if change.owner is not None and change.owner != before:
            moves.append((float(change.at_ms), change.event))
        last[change.partition] = change.owner or before
    return moves


def need_plotly() -> None:
    """Raise `EhBalanceError` if plotly is missing."""
    if find_spec("plotly") is None:
        raise EhBalanceError("drawing needs plotly: pip install 'spark-ehbalance[report]'")


def html(picture: Picture) -> str:
    """The picture as an HTML page that needs no network. Raises `EhBalanceError` if plotly is missing."""
    need_plotly()
    from plotly.graph_objects import Figure
    from plotly.subplots import make_subplots

    lanes = max(240, min(1000, 20 * len(picture.partitions) if len(picture.partitions) <= _MOST_LABELLED else 900))
    heights = (lanes, 220, 160)
    figure: Figure = make_subplots(
        rows=3,
        cols=1,
        shared_xaxes=True,
        row_heights=heights,
        vertical_spacing=60 / sum(heights),
        subplot_titles=("Who owns which partition", picture.load_title, "Partitions that came to another owner"),
    )
    owners = _owners(picture)
    colours = _colours(len(owners))
    texts = _texts(picture)
    _draw_lanes(figure, picture, owners, colours)
    _draw_loads(figure, picture, owners, colours)
    _draw_moves(figure, picture)
    figure.update_annotations(x=0, xanchor="left", font={"size": 14})  # the charts' titles: no others yet
    if texts:
        figure.layout.annotations[0].update(yshift=50)
    _draw_marks(figure, picture, texts)
    figure.update_layout(
        title={"text": f"{_escaped(picture.title)}<br><sup>{_escaped(picture.subtitle)}</sup>", "x": 0.01, "y": 0.985},
        height=sum(heights) + 230,
        barmode="overlay",
        template="plotly_white",
        font={"family": "sans-serif", "size": 13},
        margin={"l": 80, "r": 30, "t": 150 if texts else 100, "b": 60},
        hoverlabel={"namelength": -1},
        showlegend=True,
        legend={"title": {"text": "owners"}, "tracegroupgap": 2, "y": 1, "yanchor": "top"},
        legend2={"title": {"text": "moves"}, "y": 160 / (sum(heights) + 40), "yanchor": "top"},
    )
    figure.update_xaxes(
        # plotly would derive the type from the bars' lengths, which are numbers even if times are dates.
        type="date" if picture.dated else "linear",
        range=[_time(picture, picture.begin), _time(picture, picture.end)],
        showticklabels=True,
        hoverformat="%Y-%m-%d %H:%M:%S.%3f UTC" if picture.dated else ".1f",
    )
    figure.update_xaxes(title_text="UTC" if picture.dated else "seconds", row=3, col=1)
    text: str = figure.to_html(
        include_plotlyjs=True, include_mathjax=False, full_html=True, div_id="ehbalance", config=_CONFIG
    )
    return text.replace("<head>", f"<head><title>{_escaped(picture.title)}</title>", 1)


# --- the three charts --------------------------------------------------------------------------------------------


def _draw_lanes(figure: Any, picture: Picture, owners: Sequence[str], colours: Sequence[str]) -> None:
    from plotly.graph_objects import Bar

    lane = {partition: index for index, partition in enumerate(picture.partitions)}
    by_owner: dict[str, list[Segment]] = defaultdict(list)
    for segment in picture.segments:
        by_owner[segment.owner].append(segment)
    labelled = len(lane) <= _MOST_LABELLED
    for owner, colour in zip(owners, colours, strict=True):
        theirs = by_owner[owner]
        figure.add_trace(
            Bar(
                orientation="h",
                y=[lane[each.partition] for each in theirs],
                base=[_time(picture, each.start) for each in theirs],
                x=[each.end - each.start for each in theirs],
                customdata=[
                    [_escaped(each.partition), _shown(picture, each.start), _shown(picture, each.end)]
                    for each in theirs
                ],
                width=0.8 if labelled else 1.0,
                marker={"color": colour, "line": {"width": 0}},
                name=_escaped(owner),
                legendgroup=owner,
                showlegend=len(owners) <= _MOST_IN_LEGEND,
                hovertemplate="partition %{customdata[0]}<br>from %{customdata[1]}<br>to %{customdata[2]}<extra>"
                + _escaped(owner)
                + "</extra>",
            ),
            row=1,
            col=1,
        )
    step = 1 if labelled else max(1, round(len(lane) / 20))
    shown = [partition for index, partition in enumerate(picture.partitions) if index % step == 0]
    figure.update_yaxes(
        title_text="partition",
        tickvals=[lane[partition] for partition in shown],
        ticktext=[_escaped(each) for each in shown],
        range=[len(lane) - 0.5, -0.5],
        showgrid=False,
        row=1,
        col=1,
    )


def _draw_loads(figure: Any, picture: Picture, owners: Sequence[str], colours: Sequence[str]) -> None:
    from plotly.graph_objects import Scatter

    for owner, colour in zip(owners, colours, strict=True):
        values = [loads.get(owner) for _, loads in picture.loads]
        if any(value is not None for value in values):
            figure.add_trace(
                Scatter(
                    x=[_time(picture, at) for at, _ in picture.loads],
                    y=values,
                    mode="lines",
                    line={"color": colour, "width": 2 if len(owners) <= _MOST_IN_LEGEND else 1, "shape": "hv"},
                    name=_escaped(owner),
                    legendgroup=owner,
                    showlegend=False,
                    hovertemplate="%{x}: %{y:,.4~g}",
                ),
                row=2,
                col=1,
            )
    figure.update_yaxes(rangemode="tozero", row=2, col=1)


def _draw_moves(figure: Any, picture: Picture) -> None:
    from plotly.graph_objects import Bar

    width = (picture.end - picture.begin) / _BINS or 1.0
    counts = Counter((int((at - picture.begin) / width), kind) for at, kind in picture.moves)
    under = Counter[int]()
    for kind, (name, colour) in _KINDS.items():
        bins = sorted(index for index, event in counts if event == kind)
        heights = [counts[index, kind] for index in bins]
        figure.add_trace(
            Bar(
                x=[_time(picture, picture.begin + (index + 0.5) * width) for index in bins],
                y=heights,
                base=[under[index] for index in bins],
                width=width * 0.9,
                marker={"color": colour},
                name=name,
                legend="legend2",
                showlegend=True,
                hovertemplate="%{x}: %{y}",
            ),
            row=3,
            col=1,
        )
        under.update(dict(zip(bins, heights, strict=True)))
    figure.update_yaxes(rangemode="tozero", tickformat="d", row=3, col=1)


def _draw_marks(figure: Any, picture: Picture, texts: Sequence[Mark]) -> None:
    from plotly.graph_objects import Scatter

    lane = {partition: index for index, partition in enumerate(picture.partitions)}
    on_lanes = [mark for mark in picture.marks if mark.partition in lane]
    if on_lanes:
        figure.add_trace(
            Scatter(
                x=[_time(picture, mark.at) for mark in on_lanes],
                y=[lane[mark.partition] for mark in on_lanes if mark.partition is not None],
                text=[_escaped(mark.text) for mark in on_lanes],
                mode="markers",
                marker={"symbol": "diamond", "size": 10, "color": "black", "line": {"width": 1, "color": "white"}},
                name="operators",
                hovertemplate="%{x}<br>%{text}<extra></extra>",
            ),
            row=1,
            col=1,
        )
    for mark in _group_marks(picture):
        figure.add_vline(x=_time(picture, mark.at), line={"dash": "dot", "width": 1, "color": "black"})
    for index, mark in enumerate(texts):
        figure.add_annotation(
            x=_time(picture, mark.at),
            y=1,
            yref="y domain",
            yshift=14 + 14 * (index % 3),
            xanchor="left" if mark.at < (picture.begin + 2 * picture.end) / 3 else "right",  # so that the text fits
            text=_escaped(mark.text if len(mark.text) <= 40 else mark.text[:39] + "…"),
            hovertext=_escaped(mark.text),
            showarrow=False,
            font={"size": 11},
            row=1,
            col=1,
        )


def _group_marks(picture: Picture) -> list[Mark]:
    """The marks of the group, or of a partition without a lane."""
    return [mark for mark in picture.marks if mark.partition not in picture.partitions]


def _texts(picture: Picture) -> list[Mark]:
    """The marks with a text: one for several of a kind in a row, and none if there are too many."""
    texts: list[Mark] = []
    apart = _SHARED_TEXT * (picture.end - picture.begin)
    count = 1
    for mark in _group_marks(picture):
        kind = mark.text.split(" ")[0]
        last = texts[-1] if texts else None
        if last and last.text.split(" ")[0] == kind and mark.at - last.at < apart:
            count += 1
            texts[-1] = Mark(last.at, f"{kind}, {count} times")
        else:
            count = 1
            texts.append(mark)
    return texts if len(texts) <= _MOST_TEXTS else []


# --- times, owners, colours ------------------------------------------------------------------------------------------


def _time(picture: Picture, at: float) -> Any:
    """A time for plotly: a date if the axis has dates."""
    if not picture.dated:
        return at
    from datetime import datetime, timezone

    return datetime.fromtimestamp(at / 1000, timezone.utc).replace(tzinfo=None)


def _shown(picture: Picture, at: float) -> str:
    """A time as shown under the pointer."""
    return f"{_time(picture, at):%Y-%m-%d %H:%M:%S} UTC" if picture.dated else f"{at:.1f} s"


def _owners(picture: Picture) -> list[str]:
    """All owners, ordered by when they first owned a partition, then by the numbers in their names."""
    first: dict[str, float] = {}
    for segment in picture.segments:
        first[segment.owner] = min(segment.start, first.get(segment.owner, segment.start))

    def order(owner: str) -> tuple[float, list[tuple[int, int, str]]]:
        return first[owner], [partition_order(part) for part in re.split(r"(\d+)", owner)]

    return sorted(first, key=order)


def _colours(count: int) -> list[str]:
    """`count` colours that differ as much as possible."""
    if count <= len(_PALETTE):
        return list(_PALETTE[:count])
    # The golden ratio keeps neighbours apart in hue; three levels of lightness separate colours of similar hue.
    step = next(each for each in range(round(0.381966 * count), 2 * count) if gcd(each, count) == 1)
    colours = []
    for index in range(count):
        red, green, blue = colorsys.hls_to_rgb(index * step % count / count, (0.40, 0.62, 0.51)[index % 3], 0.62)
        colours.append(f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}")
    return colours


def _escaped(text: str) -> str:
    """`text` for HTML: ids and reasons are written by others."""
    return plain_lines(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
