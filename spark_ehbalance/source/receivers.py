"""The receivers that a worker process keeps open from one task to the next, and closes once they are of no use."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from spark_ehbalance.hub.receiver import PartitionAddress, Receiver

_LOG = logging.getLogger(__name__)

#: Open receivers kept by one worker; the ones unused longest are closed first. Each costs little while it waits, and
#: 5 ms of CPU when it has to be opened anew (`docs/performance.md`).
MOST_RECEIVERS = 256

#: Seconds after which a receiver that no task has asked for is closed: opening one for each batch costs little beside
#: batches that are further apart, and a token's last tenth, in which it has to be renewed, is rarely shorter.
RECEIVER_IDLE = 10.0

#: Seconds between two looks at those that are kept: several in the shortest batch, at 5 µs of CPU for each of them.
_LOOK = 0.2


class Key(NamedTuple):
    """What a receiver that is kept open must agree in with the one that is wanted."""

    source: PartitionAddress
    owner_level: int | None
    json_properties: bool
    on_malformed: str


class Receivers:
    """The open receivers of this process that no task is using, one per key. For several threads.

    While there are any a daemon thread closes those that were disconnected, whose token is about to end or that nobody
    has asked for. Whoever has taken a receiver is alone with it: the thread only sees those that are here.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Have none, without a word to the hub: after a fork they are the parent's."""
        self._lock = threading.Lock()
        self._kept: dict[Key, tuple[float, Receiver]] = {}
        self._thread: threading.Thread | None = None

    def take(self, key: Key, position: int, prefetch: int) -> Receiver:
        """A receiver that goes on at `position`; out of here until it is given back."""
        with self._lock:
            _, kept = self._kept.pop(key, (0.0, None))
            passed = self._pop(each for each in self._kept if each.source == key.source)  # another epoch
        if kept is not None:
            if kept.next == position and kept.is_usable():
                return kept
            passed.append(kept)
        _close(passed)
        _LOG.debug("partition %s: opening a receiver at %d", key.source.partition, position)
        return Receiver(
            key.source,
            position,
            owner_level=key.owner_level,
            prefetch=prefetch,
            json_properties=key.json_properties,
            on_malformed=key.on_malformed,
        )

    def keep(self, key: Key, receiver: Receiver) -> None:
        """Keep `receiver` for the next task, if it is of use then, and close it otherwise.

        Without owner level it is closed: Event Hubs allows five such readers of a partition, and there may be more
        workers. With one it has disconnected any other worker's.
        """
        if key.owner_level is None or not receiver.is_usable():
            receiver.close()
            return
        with self._lock:
            surplus = self._pop([key])
            self._kept[key] = (time.monotonic(), receiver)
            surplus += self._pop(list(self._kept)[:-MOST_RECEIVERS])
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="ehbalance-receivers", daemon=True)
                self._thread.start()
        _close(surplus)

    def close(self) -> None:
        """Close all that are kept."""
        with self._lock:
            kept = self._pop(self._kept)
        _close(kept)

    def _watch(self) -> None:
        """Close what is of no more use, until nothing is kept."""
        while True:
            time.sleep(_LOOK)
            oldest = time.monotonic() - RECEIVER_IDLE
            with self._lock:
                useless = [key for key, (used, each) in self._kept.items() if used < oldest or not each.is_usable()]
                closing = self._pop(useless)
                if not self._kept:
                    self._thread = None
            _close(closing)
            if self._thread is not threading.current_thread():
                return

    def _pop(self, keys: Iterable[Key]) -> list[Receiver]:
        return [self._kept.pop(key)[1] for key in list(keys) if key in self._kept]


def _close(receivers: list[Receiver]) -> None:
    for each in receivers:
        each.close()


#: Module-level, because a worker process keeps its modules from task to task.
RECEIVERS = Receivers()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=RECEIVERS.forget)
