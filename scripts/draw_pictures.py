"""Draws the pictures of docs/sharing.md, but for `life-of-an-event.svg`: python scripts/draw_pictures.py

What they show was played by the simulator, with the lease and strategy code that real queries run; the same
seed gives the same files. Each has a light background of its own, so that it can be read on a dark page too.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from spark_ehbalance.leases.model import Author
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import Checkpoint, HandOver, Outcome, RequestHandover, apply
from spark_ehbalance.simulation.run import Simulation
from spark_ehbalance.simulation.scenario import Event, Scenario

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"

#: The simulated group of each picture: two queries, or one that another joins, and a hub of four partitions.
_HANDOVER = Scenario(partitions=4, members=1, cycles=7, events=(Event(at=31.0, do="join"),))
_CRASH = Scenario(partitions=4, members=2, cycles=9, events=(Event(at=31.0, do="crash"),))
_PAUSE = Scenario(partitions=4, members=2, cycles=10, events=(Event(at=31.0, do="pause", lasts=42.0),))

#: Colours that colour-blind people can tell apart (Okabe and Ito), light enough for dark text on them.
_COLOURS = {"job-1": "#56b4e9", "job-2": "#e69f00"}
_INK, _FAINT, _LINE, _ALARM = "#1f2933", "#52606d", "#9aa5b1", "#b3261e"
_WIDTH = 820


def pictures() -> dict[str, str]:
    """The SVG of each picture, by its file's name."""
    handover, crash, pause = _played(_HANDOVER), _played(_CRASH), _played(_PAUSE)
    handed, crashed, expired = (_when(*each) for each in ((handover, _has(HandOver)), (crash, _moved), (pause, _moved)))
    return {
        "lease-table.svg": _lease_table(handover),
        "handover.svg": _timeline(
            "A planned handover",
            handover,
            (9, 60),
            _Mark(31.0, "job-2 starts, and asks for 0 and 1"),
            _Mark(handed.at, "job-1's batch has ended: it hands them over"),
        ),
        "crash.svg": _timeline(
            "A crash",
            crash,
            (9, 85),
            _Mark(31.0, "job-2 is killed", _ALARM),
            _Mark(crashed.at, "job-1 takes what has expired"),
        ),
        "fencing.svg": _timeline(
            "A query that was thought dead",
            pause,
            (9, 100),
            _Mark(31.0, "job-2 is suspended", _ALARM),
            _Mark(expired.at, "job-1 takes what has expired"),
            _Mark(
                31.0 + _PAUSE.events[0].lasts,
                f"job-2 goes on; its checkpoint is refused: {_late(expired)}",
                _ALARM,
                ("2", "3"),
            ),
        ),
    }


# --- what happened ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Commit:
    at: float
    by: str
    outcome: Outcome


class _Recorded(Simulation):
    """A simulation that keeps what was committed."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario, "cooperative", seed=0)
        self.commits: list[_Commit] = []

    def wrote(self, member: str, outcome: Outcome) -> None:
        super().wrote(member, outcome)
        self.commits.append(_Commit(self._engine.now, _job(member), outcome))


def _played(scenario: Scenario) -> list[_Commit]:
    simulation = _Recorded(scenario)
    simulation.run()
    return simulation.commits


def _job(member: str | None) -> str:
    """The name of a simulated member in the pictures, which have few of them."""
    return f"job-{int(member.removeprefix('member-')) + 1}" if member else ""


def _when(commits: Iterable[_Commit], holds: Callable[[_Commit], bool]) -> _Commit:
    return next(each for each in commits if holds(each))


def _has(kind: type) -> Callable[[_Commit], bool]:
    return lambda commit: any(isinstance(each, kind) for each in commit.outcome.accepted)


def _moved(commit: _Commit) -> bool:
    """Whether the commit takes a partition from another owner."""
    before, after = commit.outcome.before.leases, commit.outcome.after.leases
    return any((old := before.get(name)) and old.owner not in (None, lease.owner) for name, lease in after.items())


def _late(expired: _Commit) -> str:
    """Why a checkpoint of the owner that was thought dead is refused."""
    before, after = expired.outcome.before, expired.outcome.after
    lease = before.leases["2"]
    member = before.members[lease.owner or ""]
    assert lease.checkpoint
    late = Checkpoint(
        by=Author(member.id, member.incarnation), at_ms=0, partition="2", epoch=lease.epoch, position=lease.checkpoint
    )
    return apply(after, [late]).refused[0].reason


# --- pictures of it --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Mark:
    """Something that happens at a time; with `refused`, what is refused in these partitions."""

    at: float
    text: str
    colour: str = _INK
    refused: tuple[str, ...] = ()


def _timeline(title: str, commits: list[_Commit], span: tuple[float, float], *marks: _Mark) -> str:
    """A lane for each partition: its owners with their epochs, and its checkpoints."""
    begin, end = span
    left, right, top, lane = 96, _WIDTH - 24, 64 + 18 * len(marks), 46
    bottom = top + 4 * lane

    def x(at: float) -> float:
        return left + (min(max(at, begin), end) - begin) / (end - begin) * (right - left)

    drawn = [_text(24, 32, title, size=17, weight=600)]
    drawn += _legend(right, 30, refused=any(mark.refused for mark in marks))
    for number in range(4):
        name, y = str(number), top + number * lane
        drawn.append(_text(24, y + 24, f"partition {name}", fill=_FAINT))
        for owner, epoch, start, stop in _owned(commits, name, end):
            if stop <= begin or start >= end:
                continue
            wide = x(stop) - x(start)
            drawn.append(_box(x(start), y + 4, wide, lane - 12, _COLOURS[owner]))
            if wide > 60:
                drawn.append(_text(x(start) + 8, y + 19, f"epoch {epoch}", size=12))
        for commit in commits:
            for written in commit.outcome.accepted:
                if isinstance(written, Checkpoint) and written.partition == name and begin <= commit.at <= end:
                    drawn.append(_dot(x(commit.at), y + 29))
        drawn += [_cross(x(mark.at), y + 29) for mark in marks if name in mark.refused]
    for place, mark in enumerate(marks):
        y = 58 + 18 * place
        drawn.append(_line(x(mark.at), y + 4, x(mark.at), bottom, mark.colour, dashed=True))
        anchor, shift = ("end", -5) if x(mark.at) > _WIDTH - 290 else ("start", 5)
        text = f"{mark.at:.0f} s: {mark.text}"
        drawn.append(_text(x(mark.at) + shift, y + 8, text, size=12, fill=mark.colour, anchor=anchor))
    drawn.append(_line(left, bottom, right, bottom))
    for second in range(int(begin // 10 + 1) * 10, int(end) + 1, 10):
        drawn.append(_line(x(second), bottom, x(second), bottom + 4))
        drawn.append(_text(x(second), bottom + 18, f"{second} s", size=11, fill=_FAINT, anchor="middle"))
    return _svg(title, bottom + 34, drawn)


def _owned(commits: list[_Commit], partition: str, end: float) -> Iterator[tuple[str, int, float, float]]:
    """Who had the partition's lease at which epoch, from when to when."""
    owner, epoch, since = "", 0, 0.0
    for commit in commits:
        lease = commit.outcome.after.leases.get(partition)
        if lease is None or (_job(lease.owner), lease.epoch) == (owner, epoch):
            continue
        if owner:
            yield owner, epoch, since, commit.at
        owner, epoch, since = _job(lease.owner), lease.epoch, commit.at
    if owner:
        yield owner, epoch, since, end


def _legend(right: float, y: float, refused: bool) -> list[str]:
    drawn = []
    x = right - (400 if refused else 325)
    for name, colour in _COLOURS.items():
        drawn += [_box(x, y - 10, 14, 12, colour), _text(x + 20, y, f"{name} owns it", size=12)]
        x += 120
    drawn += [_dot(x + 6, y - 4), _text(x + 14, y, "checkpoint", size=12)]
    return [*drawn, _cross(x + 94, y - 4), _text(x + 104, y, "refused", size=12, fill=_ALARM)] if refused else drawn


def _lease_table(commits: list[_Commit]) -> str:
    """The lease table before a handover, while it is asked for, and after it."""
    joined = _when(commits, lambda commit: commit.by == "job-2")
    asked = _when(commits, _has(RequestHandover))
    states = [
        ("job-1 alone", joined.outcome.before),
        ("job-2 has joined and asks for partitions 0 and 1", asked.outcome.after),
        ("job-1 has handed them over: one commit", _when(commits, _has(HandOver)).outcome.after),
    ]
    drawn, y = [], 16
    for title, snapshot in states:
        drawn.append(_text(24, y + 18, title, size=15, weight=600))
        drawn += _rows(snapshot, y + 28)
        y += 176
    return _svg("The lease table", y + 4, drawn)


_COLUMNS = ((24, "partition"), (120, "owner"), (220, "epoch"), (300, "next owner"), (420, "checkpoint"))


def _rows(snapshot: Snapshot, y: float) -> list[str]:
    drawn = [_text(x + 8, y + 16, name, size=12, fill=_FAINT) for x, name in _COLUMNS]
    drawn.append(_text(588, y + 16, "members: heartbeat", size=12, fill=_FAINT))
    for place, lease in enumerate(snapshot.leases.values()):
        line = y + 24 + 26 * place
        owner, asked = _job(lease.owner), _job(lease.handover.to) if lease.handover else ""
        drawn.append(_box(24, line, 530, 23, _COLOURS.get(owner, "#e4e7eb")))
        if asked:
            drawn.append(_box(300, line + 2, 84, 19, _COLOURS[asked]))
        position = f"{lease.checkpoint.sequence_number:,}" if lease.checkpoint else ""
        values = (lease.partition, owner, str(lease.epoch), asked, position)
        drawn += [_text(x + 8, line + 16, value) for (x, _), value in zip(_COLUMNS, values, strict=True) if value]
    for place, member in enumerate(sorted(snapshot.members.values(), key=lambda each: each.joined)):
        name, line = _job(member.id), y + 24 + 26 * place
        drawn.append(_box(580, line, 216, 23, _COLOURS[name]))
        drawn.append(_text(588, line + 16, f"{name}: {member.renewal}"))
    return drawn


# --- SVG -------------------------------------------------------------------------------------------------------------


def _svg(title: str, height: float, drawn: Iterable[str]) -> str:
    lines = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" '
        f'height="{height:.0f}" role="img" font-family="system-ui, sans-serif">\n<title>{html.escape(title)}</title>\n'
        f'<rect width="100%" height="100%" rx="8" fill="#ffffff"/>\n{lines}\n</svg>\n'
    )


def _text(
    x: float, y: float, text: str, *, size: int = 13, fill: str = _INK, weight: int = 400, anchor: str = "start"
) -> str:
    attributes = f'font-size="{size}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}"'
    if anchor == "end":  # it may cross a line
        attributes += ' stroke="#ffffff" stroke-width="4" paint-order="stroke"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{html.escape(text)}</text>'


def _box(x: float, y: float, wide: float, high: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="4" fill="{fill}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = _INK, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashes}/>'


def _dot(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{_INK}"/>'


def _cross(x: float, y: float) -> str:
    return f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" stroke="{_ALARM}" stroke-width="2.2"/>'


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        (FOLDER / name).write_text(picture, encoding="utf-8")
