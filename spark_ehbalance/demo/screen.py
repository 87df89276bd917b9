"""The demo's output: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from spark_ehbalance.leases.model import Lease

#: Seconds between two plain lines of progress.
_LINE_INTERVAL = 5.0

_COLOURS = {"A": "cyan", "B": "magenta", None: "dim"}


@dataclass(frozen=True)
class Picture:
    """The state to show. `sent` and `read` are numbers of events, one per partition."""

    seconds: float
    phase: str
    total: int
    sent: Sequence[int]
    read: Sequence[int]
    leases: Mapping[str, Lease]


class Screen:
    """Shows pictures and log lines: a live picture below the lines, or without `live` a line every few seconds. A
    context manager, which leaves the last picture on the screen."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if live else None
        self._line_at = 0.0

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, picture: Picture) -> None:
        """Show the present state."""
        if self._live:
            head = Text(f"{picture.seconds:5.1f} s  {picture.phase}", style="bold")
            self._live.update(Group(head, _bars(picture), _lanes(picture)), refresh=True)
        elif picture.seconds >= self._line_at:
            self._line_at = picture.seconds + _LINE_INTERVAL
            self.log(picture.seconds, _line(picture))

    def log(self, seconds: float, text: str) -> None:
        """Show an event that happened."""
        self._console.print(f"{seconds:6.1f} s  {text}", highlight=False, soft_wrap=True, markup=False)
        self._console.file.flush()


def _line(picture: Picture) -> str:
    owners: dict[str, list[str]] = {}
    for partition, lease in picture.leases.items():
        owners.setdefault(lease.owner or "nobody", []).append(partition)
    who = ", ".join(f"{owner} {' '.join(owners[owner])}" for owner in sorted(owners))
    sent, read = sum(picture.sent), sum(picture.read)
    return (
        f"sent {sent:,} ({sent / picture.total:.0%}), read {read:,} ({read / picture.total:.0%}), "
        f"lag {sent - read:,}; owners: {who or 'no leases yet'}"
    )


def _bars(picture: Picture) -> Table:
    grid = Table.grid(padding=(0, 1))
    for name, events in (("sent", sum(picture.sent)), ("read", sum(picture.read))):
        bar = ProgressBar(total=picture.total, completed=events, width=40)
        grid.add_row(name, bar, f"{events:,} of {picture.total:,} flights")
    return grid


def _lanes(picture: Picture) -> Table:
    lanes = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("partition", "owner", "epoch", "read", "lag"):
        lanes.add_column(name, justify="left" if name == "owner" else "right")
    lanes.add_column("", width=24)
    lags = [sent - read for sent, read in zip(picture.sent, picture.read, strict=True)]
    for number, (read, lag) in enumerate(zip(picture.read, lags, strict=True)):
        lease = picture.leases.get(str(number), Lease(str(number)))
        colour = _COLOURS.get(lease.owner, "red")
        bar = Text("▪" * round(24 * lag / max(1, *lags)), style=colour)
        owner = Text(f"■ {lease.owner or 'nobody'}{' → ' + lease.handover.to if lease.handover else ''}", style=colour)
        lanes.add_row(str(number), owner, str(lease.epoch), f"{read:,}", f"{lag:,}", bar)
    return lanes
