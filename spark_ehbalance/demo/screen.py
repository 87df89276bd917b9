"""The demo's output: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from spark_ehbalance.leases.model import Lease

#: Seconds between two plain lines of progress.
_LINE_INTERVAL = 5.0

#: Lines of the event log: as many as fit on a small terminal below the rest.
_LOG_LINES = 8

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


class Screen(ABC):
    """Shows pictures and log lines. A context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @abstractmethod
    def show(self, picture: Picture) -> None:
        """Show the present state."""

    @abstractmethod
    def log(self, seconds: float, text: str) -> None:
        """Show an event that happened."""

    def __enter__(self) -> Screen:
        return self

    def __exit__(  # noqa: B027 most screens have nothing to close
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the last picture on the screen."""


class Lines(Screen):
    """Plain lines for logs: events at once, progress every few seconds."""

    _shown_at = float("-inf")

    def show(self, picture: Picture) -> None:
        if picture.seconds - self._shown_at < _LINE_INTERVAL:
            return
        self._shown_at = picture.seconds
        owners: dict[str | None, list[str]] = {}
        for partition, lease in picture.leases.items():
            owners.setdefault(lease.owner, []).append(partition)
        who = ", ".join(f"{owner or 'nobody'} {' '.join(owners[owner])}" for owner in sorted(owners, key=str))
        sent, read = sum(picture.sent), sum(picture.read)
        self.log(
            picture.seconds,
            f"sent {sent:,} ({_percent(sent, picture)}), read {read:,} ({_percent(read, picture)}), "
            f"lag {sent - read:,}; owners: {who or 'no leases yet'}",
        )

    def log(self, seconds: float, text: str) -> None:
        self.console.print(f"{seconds:6.1f} s  {text}", highlight=False, soft_wrap=True, markup=False)
        self.console.file.flush()


class Dashboard(Screen):
    """Progress bars, a lane per partition in its owner's colour, and the latest events."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, auto_refresh=False)
        self._lines: deque[Text] = deque(maxlen=_LOG_LINES)
        self._top: list[RenderableType] = []  # nothing before the first picture

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, picture: Picture) -> None:
        head = Text(f"{picture.seconds:5.1f} s  {picture.phase}", style="bold")
        self._top = [head, _bars(picture), _lanes(picture)]
        self._refresh()

    def log(self, seconds: float, text: str) -> None:
        self._lines.append(Text(f"{seconds:6.1f} s  {text}", overflow="ellipsis", no_wrap=True))
        self._refresh()

    def _refresh(self) -> None:
        self._live.update(Group(*self._top, *self._lines), refresh=True)


def _percent(events: int, picture: Picture) -> str:
    return f"{events / picture.total:.0%}"


def _bars(picture: Picture) -> Table:
    grid = Table.grid(padding=(0, 1))
    for name, events in (("sent", sum(picture.sent)), ("read", sum(picture.read))):
        bar = ProgressBar(total=picture.total, completed=events, width=40)
        grid.add_row(name, bar, f"{events:,} of {picture.total:,} flights")
    return grid


def _lanes(picture: Picture) -> Table:
    lanes = Table(box=None, padding=(0, 2, 0, 0))
    for column, justify in (("partition", "right"), ("owner", "left"), ("epoch", "right"), ("read", "right")):
        lanes.add_column(column, justify=justify)  # type: ignore[arg-type]
    lanes.add_column("lag", justify="right")
    lanes.add_column("", width=24)
    most = max((sent - read for sent, read in zip(picture.sent, picture.read, strict=True)), default=0)
    for number, (sent, read) in enumerate(zip(picture.sent, picture.read, strict=True)):
        lease = picture.leases.get(str(number), Lease(str(number)))
        colour = _COLOURS.get(lease.owner, "red")
        lag: RenderableType = Text("▪" * round(24 * (sent - read) / max(most, 1)), style=colour)
        owner = Text(f"■ {lease.owner or 'nobody'}{' → ' + lease.handover.to if lease.handover else ''}", style=colour)
        lanes.add_row(str(number), owner, str(lease.epoch), f"{read:,}", f"{sent - read:,}", lag)
    return lanes
