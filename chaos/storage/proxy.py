"""A proxy in front of a storage account that delays, counts and disturbs requests."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from typing import Any

from chaos.storage import relay
from chaos.storage.faults import Request, RequestKind, Rule


class StorageProxy:
    """Forwards each request to the storage at the address `upstream`, after `latency` seconds.

    It runs in its own process, because delta-rs makes some requests while it holds the interpreter's lock. That process
    ends together with this one, even if this one is killed.
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
        """From now on, put the storage's clock forward: shift the dates in its answers, including those of files."""
        self._order("set_skew", seconds)

    def disturb(self, *rules: Rule) -> None:
        """From now on, disturb each request by the first of `rules` that applies. These replace all earlier rules, and
        are copied. Without rules, no request is disturbed."""
        self._order("set_rules", *rules)

    def requests(self, first: int = 0) -> list[Request]:
        """The requests received so far, without the first `first` requests."""
        requests: list[Request] = self._order("requests", first)
        return requests

    def counts(self) -> Counter[RequestKind]:
        counts: Counter[RequestKind] = self._order("counts")
        return counts

    @contextlib.contextmanager
    def count_requests(self) -> Iterator[Counter[RequestKind]]:
        """Count the requests in a `with` block. The result is filled when the block ends."""
        before, found = self.counts(), Counter[RequestKind]()
        yield found
        found.update(self.counts() - before)

    def _order(self, name: str, *arguments: Any) -> Any:
        self._orders.send((name, arguments))
        return self._orders.recv()
