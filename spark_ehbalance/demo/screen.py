"""The demo's output: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spark_ehbalance.demo.ownership import next_of
from spark_ehbalance.group.model import Lease

#: Seconds between two plain lines of progress.
_LINE_INTERVAL = 5.0

_COLOURS = {"A": "cyan", "B": "magenta", None: "dim"}


class Screen:
    """Shows progress and log lines. A context manager, which leaves the last table on the screen."""

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

    def show(self, seconds: float, phase: str, sent: Sequence[int], leases: Mapping[str, Lease]) -> None:
        """Show the present state; `sent` has the number of events of each partition."""
        if self._live:
            self._live.update(_table(f"{seconds:.1f} s  {phase}", sent, leases), refresh=True)
        elif seconds >= self._line_at:
            self._line_at = seconds + _LINE_INTERVAL
            owners = " ".join(lease.owner or "-" for lease in leases.values())
            read = sum(map(next_of, leases.values()))
            self.log(seconds, f"{phase}: {sum(sent):,} sent, {read:,} read; owners: {owners or 'no leases yet'}")

    def log(self, seconds: float, text: str) -> None:
        """Show an event that happened."""
        self._console.print(f"{seconds:6.1f} s  {text}", highlight=False, soft_wrap=True, markup=False)
        self._console.file.flush()


def _table(title: str, sent: Sequence[int], leases: Mapping[str, Lease]) -> Table:
    table = Table("partition", "owner", "epoch", "sent", "read", "lag", title=title, title_justify="left")
    for number, events in enumerate(sent):
        lease = leases.get(str(number), Lease(str(number)))
        read = next_of(lease)
        owner = Text(lease.owner or "nobody", style=_COLOURS.get(lease.owner, "red"))
        table.add_row(str(number), owner, str(lease.epoch), f"{events:,}", f"{read:,}", f"{events - read:,}")
    return table
