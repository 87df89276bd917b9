"""Draws a group's ownership over time, its members' loads and its moves as one HTML file that needs no network.

`simulate --report` and `report` share it. plotly is an optional dependency, imported only for drawing.
"""

from __future__ import annotations

import colorsys
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from importlib.util import find_spec
from math import gcd
from typing import Any, NamedTuple

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

#: A trace of plotly, or another part of its figures.
_Trace = dict[str, Any]

_CONFIG = {"displaylogo": False, "responsive": True}

_BINS = 60  # bars of the chart of moves


class Segment(NamedTuple):
    """`owner` owned `partition` from `start` to `end`."""

    partition: str
    owner: str
    start: float
    end: float


class Mark(NamedTuple):
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

    def time(self, at: float) -> Any:
        """A time for plotly: a date if the axis has dates."""
        return datetime.fromtimestamp(at / 1000, timezone.utc).replace(tzinfo=None) if self.dated else at

    def shown(self, at: float) -> str:
        """A time as shown under the pointer."""
        return f"{self.time(at):%Y-%m-%d %H:%M:%S} UTC" if self.dated else f"{at:.1f} s"


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

    count = len(picture.partitions)
    heights = (max(240, 20 * count) if count <= _MOST_LABELLED else 900, 220, 160)
    titles = ("Who owns which partition", picture.load_title, "Partitions that came to another owner")
    rows = {"row_heights": heights, "vertical_spacing": 60 / sum(heights), "subplot_titles": titles}
    figure: Figure = make_subplots(3, 1, shared_xaxes=True, **rows)
    owners = _owners(picture)
    colours = dict(zip(owners, _colours(len(owners)), strict=True))
    for row, traces in enumerate((_lanes, _loads, _moves, _orders)):
        for trace in traces(picture, colours):
            figure.add_trace(trace, row=row % 3 + 1, col=1)  # orders are drawn over the lanes
    figure.update_annotations(x=0, xanchor="left", font={"size": 14})  # the charts' titles: no others yet
    if texts := _texts(picture):
        figure.layout.annotations[0].update(yshift=50)
    for mark in _group_marks(picture):
        figure.add_vline(x=picture.time(mark.at), line={"dash": "dot", "width": 1, "color": "black"})
    for index, mark in enumerate(texts):
        figure.add_annotation(_annotation(picture, index, mark), row=1, col=1)
    title = f"{_escaped(picture.title)}<br><sup>{_escaped(picture.subtitle)}</sup>"
    height = sum(heights)
    figure.update_layout(title={"text": title, "x": 0.01, "y": 0.985}, height=height + 230, template="plotly_white")
    figure.update_layout(margin={"l": 80, "r": 30, "t": 150 if texts else 100, "b": 60}, barmode="overlay")
    figure.update_layout(font={"family": "sans-serif", "size": 13}, hoverlabel={"namelength": -1}, showlegend=True)
    figure.update_layout(legend={"title": {"text": "owners"}, "tracegroupgap": 2, "y": 1, "yanchor": "top"})
    figure.update_layout(legend2={"title": {"text": "moves"}, "y": 160 / (height + 40), "yanchor": "top"})
    figure.update_layout(yaxis=_partition_axis(picture.partitions), yaxis2={"rangemode": "tozero"})
    figure.update_layout(yaxis3={"rangemode": "tozero", "tickformat": "d"})
    # plotly would derive the type from the bars' lengths, which are numbers even if times are dates.
    kind, unit, hover = ("date", "UTC", "%Y-%m-%d %H:%M:%S.%3f UTC") if picture.dated else ("linear", "seconds", ".1f")
    shown = [picture.time(picture.begin), picture.time(picture.end)]
    figure.update_xaxes(type=kind, range=shown, showticklabels=True, hoverformat=hover)
    figure.update_layout(xaxis3_title_text=unit)
    text: str = figure.to_html(include_mathjax=False, div_id="ehbalance", config=_CONFIG)
    return text.replace("<head>", f"<head><title>{_escaped(picture.title)}</title>", 1)


# --- what is drawn, as plotly's traces ---------------------------------------------------------------------------


def _lanes(picture: Picture, colours: Mapping[str, str]) -> Iterator[_Trace]:
    """Bars from each segment's start to its end, by owner."""
    lane = {partition: index for index, partition in enumerate(picture.partitions)}
    by_owner: dict[str, list[Segment]] = defaultdict(list)
    for segment in picture.segments:
        by_owner[segment.owner].append(segment)
    where = "partition %{customdata[0]}<br>from %{customdata[1]}<br>to %{customdata[2]}"
    for owner, colour in colours.items():
        theirs, name = by_owner[owner], _escaped(owner)
        yield {
            "type": "bar",
            "orientation": "h",
            "y": [lane[each.partition] for each in theirs],
            "base": [picture.time(each.start) for each in theirs],
            "x": [each.end - each.start for each in theirs],
            "customdata": [
                [_escaped(each.partition), picture.shown(each.start), picture.shown(each.end)] for each in theirs
            ],
            "width": 0.8 if len(lane) <= _MOST_LABELLED else 1.0,
            "marker": {"color": colour, "line": {"width": 0}},
            "name": name,
            "legendgroup": owner,
            "showlegend": len(colours) <= _MOST_IN_LEGEND,
            "hovertemplate": f"{where}<extra>{name}</extra>",
        }


def _partition_axis(partitions: Sequence[str]) -> _Trace:
    step = 1 if len(partitions) <= _MOST_LABELLED else max(1, round(len(partitions) / 20))
    return {
        "title": {"text": "partition"},
        "tickvals": list(range(len(partitions))[::step]),
        "ticktext": [_escaped(each) for each in partitions[::step]],
        "range": [len(partitions) - 0.5, -0.5],
        "showgrid": False,
    }


def _loads(picture: Picture, colours: Mapping[str, str]) -> Iterator[_Trace]:
    """A line for each owner that has a load."""
    for owner, colour in colours.items():
        if any(loads.get(owner) is not None for _, loads in picture.loads):
            yield {
                "type": "scatter",
                "x": [picture.time(at) for at, _ in picture.loads],
                "y": [loads.get(owner) for _, loads in picture.loads],
                "mode": "lines",
                "line": {"color": colour, "width": 2 if len(colours) <= _MOST_IN_LEGEND else 1, "shape": "hv"},
                "name": _escaped(owner),
                "legendgroup": owner,
                "showlegend": False,
                "hovertemplate": "%{x}: %{y:,.4~g}",
            }


def _moves(picture: Picture, _: Mapping[str, str]) -> Iterator[_Trace]:
    """Stacked bars: the moves of each kind in each of `_BINS` parts of the time."""
    width = (picture.end - picture.begin) / _BINS or 1.0
    counts = Counter((int((at - picture.begin) / width), kind) for at, kind in picture.moves)
    under = Counter[int]()
    for kind, (name, colour) in _KINDS.items():
        heights = {index: count for (index, event), count in sorted(counts.items()) if event == kind}
        yield {
            "type": "bar",
            "x": [picture.time(picture.begin + (index + 0.5) * width) for index in heights],
            "y": list(heights.values()),
            "base": [under[index] for index in heights],
            "width": width * 0.9,
            "marker": {"color": colour},
            "name": name,
            "legend": "legend2",
            "showlegend": True,
            "hovertemplate": "%{x}: %{y}",
        }
        under.update(heights)


def _orders(picture: Picture, _: Mapping[str, str]) -> Iterator[_Trace]:
    """Diamonds on the lanes: operators' orders about a partition."""
    lane = {partition: index for index, partition in enumerate(picture.partitions)}
    if on_lanes := [(mark, lane[mark.partition]) for mark in picture.marks if mark.partition in lane]:
        yield {
            "type": "scatter",
            "x": [picture.time(mark.at) for mark, _ in on_lanes],
            "y": [index for _, index in on_lanes],
            "text": [_escaped(mark.text) for mark, _ in on_lanes],
            "mode": "markers",
            "marker": {"symbol": "diamond", "size": 10, "color": "black", "line": {"width": 1, "color": "white"}},
            "name": "operators",
            "hovertemplate": "%{x}<br>%{text}<extra></extra>",
        }


def _annotation(picture: Picture, index: int, mark: Mark) -> _Trace:
    """The text of a mark, above the lanes."""
    return {
        "x": picture.time(mark.at),
        "y": 1,
        "yref": "y domain",
        "yshift": 14 + 14 * (index % 3),
        "xanchor": "left" if mark.at < (picture.begin + 2 * picture.end) / 3 else "right",  # so that the text fits
        "text": _escaped(mark.text if len(mark.text) <= 40 else mark.text[:39] + "…"),
        "hovertext": _escaped(mark.text),
        "showarrow": False,
        "font": {"size": 11},
    }


def _group_marks(picture: Picture) -> list[Mark]:
    """The marks of the group, or of a partition without a lane."""
    return [mark for mark in picture.marks if mark.partition not in picture.partitions]


def _texts(picture: Picture) -> list[Mark]:
    """The marks with a text: one for several of a kind in a row, and none if there are too many."""
    apart = _SHARED_TEXT * (picture.end - picture.begin)
    rows: list[list[Mark]] = []
    for mark in _group_marks(picture):
        if rows and _kind(rows[-1][0]) == _kind(mark) and mark.at - rows[-1][0].at < apart:
            rows[-1].append(mark)
        else:
            rows.append([mark])
    texts = [row[0] if len(row) == 1 else Mark(row[0].at, f"{_kind(row[0])}, {len(row)} times") for row in rows]
    return texts if len(texts) <= _MOST_TEXTS else []


def _kind(mark: Mark) -> str:
    return mark.text.split(" ")[0]


def _owners(picture: Picture) -> list[str]:
    """All owners, ordered by when they first owned a partition, then by the numbers in their names."""
    first: dict[str, float] = {}
    for segment in picture.segments:
        first[segment.owner] = min(segment.start, first.get(segment.owner, segment.start))
    return sorted(first, key=lambda each: (first[each], [partition_order(part) for part in re.split(r"(\d+)", each)]))


def _colours(count: int) -> list[str]:
    """`count` colours that differ as much as possible."""
    if count <= len(_PALETTE):
        return list(_PALETTE[:count])
    # The golden ratio keeps neighbours apart in hue; three levels of lightness separate colours of similar hue.
    step = next(each for each in range(round(0.381966 * count), 2 * count) if gcd(each, count) == 1)
    colours = []
    for index in range(count):
        rgb = colorsys.hls_to_rgb(index * step % count / count, (0.40, 0.62, 0.51)[index % 3], 0.62)
        colours.append("#" + "".join(f"{round(each * 255):02x}" for each in rgb))
    return colours


def _escaped(text: str) -> str:
    """`text` for HTML: ids and reasons are written by others."""
    return escape(plain_lines(text), quote=False)
