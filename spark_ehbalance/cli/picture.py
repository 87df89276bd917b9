"""Draws a group's ownership over time, its members' loads and its moves as one HTML file that needs no network.

`simulate --report` and `report` share it. plotly is an optional dependency, imported only for drawing.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from importlib.util import find_spec
from typing import Any

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.leases.timeline import Mark, Segment
from spark_ehbalance.text import plain_lines
from spark_ehbalance.values.position import partition_order

#: The events that move a partition, with their name and grey in the chart of moves; colours stand for owners.
_KINDS = {
    "HandOver": ("handed over", "#c9c9c9"),
    "Claim": ("claimed", "#8c8c8c"),
    "Steal": ("stolen", "#333333"),
}

#: The most owners with a legend. With more, names show under the pointer only.
_MOST_IN_LEGEND = 24

#: The most partitions whose lanes have gaps.
_MOST_WITH_GAPS = 40

#: Two texts of marks are at least this part of the whole time apart. Others show under the pointer only.
_APART = 0.12

#: The lane of the marks that concern the whole group.
_GROUP_LANE = ""

#: A trace of plotly.
_Trace = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn. Times are in milliseconds since 1970; the axis has dates, or seconds since `zero`.

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
    zero: float | None = None

    def time(self, at: float) -> Any:
        if self.zero is not None:
            return (at - self.zero) / 1000
        return datetime.fromtimestamp(at / 1000, timezone.utc).replace(tzinfo=None)

    def shown(self, at: float) -> str:
        """A time as shown under the pointer."""
        return f"{self.time(at):%Y-%m-%d %H:%M:%S} UTC" if self.zero is None else f"{self.time(at):.1f} s"


def need_plotly() -> None:
    """Raise `EhBalanceError` if plotly is missing."""
    if find_spec("plotly") is None:
        raise EhBalanceError("drawing needs plotly: pip install 'spark-ehbalance[report]'")


def html(picture: Picture) -> str:
    """The picture as an HTML page that needs no network. Raises `EhBalanceError` if plotly is missing."""
    need_plotly()
    from plotly.colors import qualitative
    from plotly.graph_objects import Figure
    from plotly.subplots import make_subplots

    owners = sorted({each.owner for each in picture.segments}, key=_by_numbers)
    # The first palette is for colour-blind people too.
    palette = qualitative.Safe if len(owners) <= len(qualitative.Safe) else qualitative.Dark24
    colours = dict(zip(owners, itertools.cycle(palette), strict=False))
    heights = (min(900, max(240, 20 * len(picture.partitions))), 220, 160)
    titles = ("Who owns which partition", picture.load_title, "Partitions that came to another owner")
    rows = {"row_heights": heights, "vertical_spacing": 60 / sum(heights), "subplot_titles": titles}
    figure: Figure = make_subplots(3, 1, shared_xaxes=True, **rows)
    for row, traces in ((1, _lanes), (2, _loads), (3, _moves), (1, _marks)):
        for trace in traces(picture, colours):
            figure.add_trace(trace, row=row, col=1)
    figure.update_annotations(x=0, xanchor="left", font={"size": 14})  # the charts' titles: there are no others
    for mark in picture.marks:
        if _lane(picture, mark) == _GROUP_LANE:
            figure.add_vline(x=picture.time(mark.at), line={"dash": "dot", "width": 1, "color": "black"})
    lanes = [_GROUP_LANE, *map(_escaped, picture.partitions)]
    title = f"{_escaped(picture.title)}<br><sup>{_escaped(picture.subtitle)}</sup>"
    figure.update_layout(
        title={"text": title, "x": 0.01},
        height=sum(heights) + 230,
        template="plotly_white",
        barmode="stack",  # of the moves: the lanes' bars have a base
        hoverlabel={"namelength": -1},
        showlegend=True,
        yaxis={"title": {"text": "partition"}, "type": "category", "categoryarray": lanes, "autorange": "reversed"},
        yaxis2={"rangemode": "tozero"},
        yaxis3={"tickformat": "d"},
        xaxis3_title_text="UTC" if picture.zero is None else "seconds",
    )
    # plotly would derive the type from the bars' lengths, which are numbers even if times are dates.
    kind, hover = ("date", "%Y-%m-%d %H:%M:%S.%3f UTC") if picture.zero is None else ("linear", ".1f")
    shown = [picture.time(picture.begin), picture.time(picture.end)]
    figure.update_xaxes(type=kind, range=shown, showticklabels=True, hoverformat=hover)
    text: str = figure.to_html(include_mathjax=False, config={"displaylogo": False, "responsive": True})
    return text.replace("<head>", f"<head><title>{_escaped(picture.title)}</title>", 1)


# --- what is drawn, as plotly's traces ---------------------------------------------------------------------------


def _lanes(picture: Picture, colours: Mapping[str, str]) -> Iterator[_Trace]:
    """Bars from each segment's start to its end, by owner."""
    by_owner: dict[str, list[Segment]] = defaultdict(list)
    for segment in picture.segments:
        by_owner[segment.owner].append(segment)
    unit = 1 if picture.zero is None else 1000
    for owner, colour in colours.items():
        theirs, name = by_owner[owner], _escaped(owner)
        yield {
            "type": "bar",
            "orientation": "h",
            "y": [_escaped(each.partition) for each in theirs],
            "base": [picture.time(each.start) for each in theirs],
            "x": [(each.end - each.start) / unit for each in theirs],
            "customdata": [[picture.shown(each.start), picture.shown(each.end)] for each in theirs],
            "width": 0.8 if len(picture.partitions) <= _MOST_WITH_GAPS else 1.0,
            "marker": {"color": colour, "line": {"width": 0}},
            "name": name,
            "legendgroup": owner,
            "showlegend": len(colours) <= _MOST_IN_LEGEND,
            "hovertemplate": "partition %{y}<br>from %{customdata[0]}<br>to %{customdata[1]}"
            f"<extra>{name}</extra>",
        }


def _loads(picture: Picture, colours: Mapping[str, str]) -> Iterator[_Trace]:
    for owner, colour in colours.items():
        yield {
            "type": "scatter",
            "x": [picture.time(at) for at, _ in picture.loads],
            "y": [loads.get(owner) for _, loads in picture.loads],
            "mode": "lines",
            "line": {"color": colour, "shape": "hv"},
            "name": _escaped(owner),
            "legendgroup": owner,
            "showlegend": False,
            "hovertemplate": "%{x}: %{y:,.4~g}",
        }


def _moves(picture: Picture, _: Mapping[str, str]) -> Iterator[_Trace]:
    for kind, (name, colour) in _KINDS.items():
        times = [picture.time(at) for at, each in picture.moves if each == kind]
        yield {"type": "histogram", "x": times, "nbinsx": 60, "marker": {"color": colour}, "name": name}


def _marks(picture: Picture, _: Mapping[str, str]) -> Iterator[_Trace]:
    """Diamonds on the lanes; those of the whole group have a text, unless another one is too close."""
    texts, last = list[str](), float("-inf")
    for mark in picture.marks:
        is_shown = _lane(picture, mark) == _GROUP_LANE and mark.at - last >= _APART * (picture.end - picture.begin)
        texts.append(_escaped(mark.text[:24]) if is_shown else "")
        last = mark.at if is_shown else last
    late = (picture.begin + 2 * picture.end) / 3
    yield {
        "type": "scatter",
        "x": [picture.time(mark.at) for mark in picture.marks],
        "y": [_lane(picture, mark) for mark in picture.marks],
        "text": texts,
        "textposition": ["middle right" if mark.at < late else "middle left" for mark in picture.marks],
        "customdata": [_escaped(mark.text) for mark in picture.marks],
        "mode": "markers+text",
        "marker": {"symbol": "diamond", "size": 10, "color": "black", "line": {"width": 1, "color": "white"}},
        "showlegend": False,
        "hovertemplate": "%{x}<br>%{customdata}<extra></extra>",
    }


def _lane(picture: Picture, mark: Mark) -> str:
    return _escaped(str(mark.partition)) if mark.partition in picture.partitions else _GROUP_LANE


def _by_numbers(name: str) -> list[tuple[int, int, str]]:
    """A sort key: `job-9` comes before `job-10`."""
    return [partition_order(part) for part in re.split(r"(\d+)", name)]


def _escaped(text: str) -> str:
    """`text` for HTML: ids and reasons are written by others."""
    return escape(plain_lines(text), quote=False)
