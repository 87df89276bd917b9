"""The receivers that a worker process keeps open from one task to the next.

According to Spark's documentation of Python data sources, a reader must not keep state: it is pickled, tasks run in any
worker and more than once, and a reader is not notified when its query ends. Keeping receivers is safe because no result
depends on it: a kept receiver is used only if it is still connected and its next event is the first one of the task's
range; otherwise a new one is opened, which returns the same rows. Kept receivers are not part of a reader and are never
pickled; a forked process drops them. A kept receiver is closed if another worker reads its partition, if its token is
about to expire, or if it has not been used for a while. Keeping a receiver saves 5 ms of CPU and, on Azure, about ten
round trips for each partition of a batch.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver, RowFormat
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Maximum number of receivers that one worker keeps; the receivers unused for longest are closed first.
MAX_RECEIVERS = 256

#: Seconds after which an unused receiver is closed. If batches are further apart, reopening it for each batch is cheap
#: in comparison. Receivers are not kept in the last tenth of their token's lifetime, which is rarely shorter than this.
RECEIVER_IDLE = 10.0

#: Seconds between two checks of the kept receivers; a check costs 5 µs of CPU per receiver.
_CHECK_INTERVAL = 0.2


class ReceiverKey(NamedTuple):
    """Properties that a kept receiver must share with the required one."""

    address: PartitionAddress
    owner_level: int | None
    row_format: RowFormat
    gaps: bool = False


class _Kept(NamedTuple):
    """A receiver that no task has used since monotonic time `since`."""

    since: float
    receiver: Receiver


class Receivers:
    """The open, unused receivers of this process, one per key. Thread-safe.

    While there are any, a daemon thread checks them every `check_interval` seconds, and closes those that were
    disconnected, whose token is about to expire, or that have been unused for `idle` seconds. `take` removes a
    receiver, so that only one task uses it.
    """

    def __init__(
        self, *, most: int = MAX_RECEIVERS, idle: float = RECEIVER_IDLE, check_interval: float = _CHECK_INTERVAL
    ) -> None:
        """At most `most` receivers are kept."""
        self._most, self._idle, self._check_interval = most, idle, check_interval
        self.forget()

    def count(self) -> int:
        """Number of kept receivers."""
        with self._lock:
            return len(self._kept)

    def forget(self) -> None:
        """Drop all receivers without closing them: in a forked process, they belong to the parent."""
        self._lock = threading.Lock()
        self._kept: dict[ReceiverKey, _Kept] = {}
        self._thread: threading.Thread | None = None

    def take(self, key: ReceiverKey, position: int, prefetch: int) -> Receiver:
        """A receiver whose next event is `position`: a kept one if it can be used, else a new one."""
        with self._lock:
            found = self._kept.pop(key, None)
            kept = found and found.receiver
            useless = self._pop(other for other in self._kept if other.address == key.address)  # another epoch or query
        if kept is not None:
            if kept.next == position and kept.is_usable():
                return kept
            useless.append(kept)
        _close(useless)
        _LOG.debug("partition %s: opening a receiver at %d", key.address.partition, position)
        return Receiver(
            key.address,
            position,
            owner_level=key.owner_level,
            prefetch=prefetch,
            row_format=key.row_format,
            gaps=key.gaps,
        )

    def keep(self, key: ReceiverKey, receiver: Receiver) -> None:
        """Keep `receiver` for the next task, or close it if it cannot be reused.

        A receiver without an owner level is closed, because Event Hubs allows only five per partition, and there may be
        more workers. A receiver with an owner level has disconnected the partition's others, so it is the only one.
        """
        if key.owner_level is None or not receiver.is_usable():
            receiver.close()
            return
        with self._lock:
            surplus = self._pop([key])
            self._kept[key] = _Kept(time.monotonic(), receiver)
            surplus += self._pop(list(self._kept)[: -self._most])
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="ehbalance-receivers", daemon=True)
                self._thread.start()
        _close(surplus)

    def close(self) -> None:
        """Close all kept receivers."""
        with self._lock:
            kept = self._pop(self._kept)
        _close(kept)

    def _watch(self) -> None:
        """Close unusable and idle receivers, until none is kept."""
        while True:
            time.sleep(self._check_interval)
            with self._lock:
                closing = self._pop([key for key, kept in self._kept.items() if not self._is_useful(kept)])
                if not self._kept:
                    self._thread = None
            _close(closing)
            if self._thread is not threading.current_thread():
                return

    def _is_useful(self, kept: _Kept) -> bool:
        return time.monotonic() - kept.since < self._idle and kept.receiver.is_usable()

    def _pop(self, keys: Iterable[ReceiverKey]) -> list[Receiver]:
        return [self._kept.pop(key).receiver for key in list(keys) if key in self._kept]


def _close(receivers: list[Receiver]) -> None:
    for receiver in receivers:
        receiver.close()


#: The receivers of this process. Spark reuses a worker process, including its imported modules, for many tasks.
RECEIVERS = Receivers()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=RECEIVERS.forget)
