"""What all viewers are shown: filled by the threads that look at tables, read by the server."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_ehbalance import __version__


class _Section(NamedTuple):
    """A part of the page, as JSON too, and the number of the change that has made it."""

    value: Any
    text: str
    change: int


@dataclass
class _Group:
    """`looked`: when its table was read last, in milliseconds since 1970; `problem`: why it cannot be read."""

    table: str
    looked: int | None = None
    problem: str | None = None
    sections: dict[str, _Section] = field(default_factory=dict)


class Board:
    """The groups in `tables`, which are named by their locations. Any thread may call it. `clock` tells milliseconds
    since 1970."""

    def __init__(self, tables: Sequence[str], clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._clock = clock
        self._groups = [_Group(table) for table in tables]
        self._changed = threading.Condition()
        self._changes = 0
        self._wakers: set[Callable[[], None]] = set()
        self._closed = False

    def show(self, number: int, sections: Mapping[str, Any], looked_ms: int) -> None:
        """Show these parts of the group with this number."""
        known = self._groups[number].sections
        new = {name: each for name, each in sections.items() if name not in known or known[name].value is not each}
        texts = {name: json.dumps(each, separators=(",", ":")) for name, each in new.items()}
        with self._changed:
            group = self._groups[number]
            group.looked, group.problem = looked_ms, None
            for name, text in texts.items():
                if name not in known or known[name].text != text:
                    self._changes += 1
                    known[name] = _Section(new[name], text, self._changes)
            self._wake()

    def fail(self, number: int, problem: str) -> None:
        """Say why the table of the group with this number cannot be read; what was shown stays."""
        with self._changed:
            self._groups[number].problem = problem
            self._wake()

    def news(self, since: int | None) -> tuple[int, str]:
        """The changes since the change `since` (None: all), as JSON, and the number of the last one."""
        with self._changed:
            groups = []
            for each in self._groups:
                found = [(name, part.text) for name, part in each.sections.items() if part.change > (since or 0)]
                sections = ",".join(f'"{name}":{text}' for name, text in found)
                head = json.dumps({"table": each.table, "looked": each.looked, "problem": each.problem})
                groups.append(f'{head[:-1]},"sections":{{{sections}}}}}')
            head = json.dumps({"version": __version__, "all": since is None, "now": self._clock()})
            return self._changes, f'{head[:-1]},"groups":[{",".join(groups)}]}}'

    @contextlib.contextmanager
    def viewer(self, wake: Callable[[], None]) -> Iterator[None]:
        """While somebody looks at the page: `wake` is called after each look at a table."""
        with self._changed:
            self._wakers.add(wake)
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._wakers.discard(wake)

    def wait(self, watched: float, unwatched: float) -> bool:
        """Wait `watched` seconds, or `unwatched` while nobody looks at the page; False once it is closed."""
        began = time.monotonic()
        with self._changed:
            while not self._closed:
                left = began + (watched if self._wakers else unwatched) - time.monotonic()
                if left <= 0:
                    return True
                self._changed.wait(left)
            return False

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End what waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._wake()

    def _wake(self) -> None:
        for wake in self._wakers:
            wake()
