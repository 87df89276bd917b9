"""The display of `run`: one live line per query on a terminal, log lines elsewhere."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from spark_ehbalance.spark.run_statistics import RunStatistics
from spark_ehbalance.text import logger, plain

_LOG = logger(__name__)

#: Seconds between two log lines of a query's statistics.
_LOG_INTERVAL = 10.0


class Display:
    """Writes to standard error. A context manager."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` are the queries' names. If there is only one query, its name is not shown."""
        self._names = [plain(name) for name in names]
        console = Console(stderr=True)
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._handler: logging.Handler | None = None
        self._logged = [("", -_LOG_INTERVAL)] * len(names)

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        elif not _LOG.hasHandlers():  # Python's default shows warnings only
            self._handler = logging.StreamHandler(sys.stderr)
            self._handler.setFormatter(logging.Formatter("%(asctime)s ehbalance: %(message)s"))
            self._before = _LOG.level
            _LOG.addHandler(self._handler)
            _LOG.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
        if self._handler:
            _LOG.removeHandler(self._handler)
            _LOG.setLevel(self._before)

    def show(self, figures: Sequence[RunStatistics], *, last: bool = False) -> None:
        """Show the queries' statistics. With `last`, they are logged without waiting for the interval."""
        now = time.monotonic()
        if self._live:
            lines = [Text(self._named(figure.line(now), name), no_wrap=True, overflow="ellipsis")
                     for figure, name in zip(figures, self._names, strict=True)]  # fmt: skip
            with contextlib.suppress(OSError):  # the terminal was closed
                self._live.update(Group(*lines), refresh=True)
            return
        for number, figure in enumerate(figures):
            state, at = self._logged[number]
            if figure.state() != state and (last or now - at >= _LOG_INTERVAL):
                self._logged[number] = (figure.state(), now)
                _LOG.info("%s", self._named(figure.line(now), self._names[number]))

    def show_message(self, text: str, name: str = "") -> None:
        """Show a message about the query `name`, or about all queries if `name` is empty."""
        text = self._named(text, plain(name)) if name else text
        if self._live:
            self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            _LOG.info("%s", text)

    def _named(self, text: str, name: str) -> str:
        return text if len(self._names) == 1 else f"{name}: {text}"
