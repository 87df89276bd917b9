"""A proxy before a storage that delays, counts and disturbs requests."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from typing import Any

from chaos.storage import relay
from chaos.storage.faults import Request, RequestKind, Rule


class StorageProxy:
    """Forwards to the storage at the address `upstream`, each request after `latency` seconds.

    It runs in a process of its own, since delta-rs makes some requests while it holds the interpreter's lock. That
    process ends with this one, also if this one is killed.
    """

    def __init__(self, upstream: str, latency: float = 0.0) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._orders, other = spawn.Pipe()
        self._process = spawn.Process(target=relay.run, args=(upstream, latency, other), daemon=True)
        self._process.start()
        other.close()
        self.address = f"http://127.0.0.1:{self._orders.recv()}"

    def __enter__(self) -> StorageProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._orders.close()
        self._process.join()

    def skew(self, seconds: float) -> None:
        """Put the storage's clock forward: the dates in its answers, and of its files, from now on."""
        self._order("set_skew", seconds)

    def disturb(self, *rules: Rule) -> None:
        """Disturb requests from now on, each by the first rule that applies, and no longer by those set before. The
        rules are copied; without any nothing is disturbed."""
        self._order("set_rules", *rules)

    def requests(self, first: int = 0) -> list[Request]:
        """The requests that have come, without the `first` ones."""
        requests: list[Request] = self._order("requests", first)
        return requests

    def counts(self) -> Counter[RequestKind]:
        counts: Counter[RequestKind] = self._order("counts")
        return counts

    @contextlib.contextmanager
    def counted(self) -> Iterator[Counter[RequestKind]]:
        """Counts the requests of a block, once that has ended."""
        before, found = self.counts(), Counter[RequestKind]()
        yield found
        found.update(self.counts() - before)

    def _order(self, name: str, *arguments: Any) -> Any:
        self._orders.send((name, arguments))
        return self._orders.recv()
