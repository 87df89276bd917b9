"""Sends the rows of one task: encodes a part of them, checks all of that, then sends it while the next is encoded.

The links that a worker has opened stay open for its next task, as its receivers do (`query.receivers` says why that is
right).
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa

from spark_ehbalance.errors import HubUnavailableError, MissingError
from spark_ehbalance.eventhub.client_errors import (
    CredentialsRefusedError,
    MissingHubCheck,
    ServerBusyError,
    TransientError,
)
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.metadata import HubMetadata
from spark_ehbalance.eventhub.network import NetworkError
from spark_ehbalance.eventhub.sender import Sender
from spark_ehbalance.eventhub.sending.columns import Columns, Events, RowEncoder, check_topic
from spark_ehbalance.eventhub.sending.write_options import WriteOptions
from spark_ehbalance.eventhub.service_errors import busy_wait
from spark_ehbalance.eventhub.wire.encoder import Batch, Keyed, windows
from spark_ehbalance.eventhub.wire.sending_link import Deadline
from spark_ehbalance.text import logger

_T = TypeVar("_T")

_LOG = logger(__name__)

#: Bytes of rows that are checked together before any of them is sent: a task of a micro-batch seldom has more.
_PART = 32 << 20

#: Bytes that a row takes besides as Python's objects, if it is small and has a key of its own.
_ROW = 1000

#: The size of a batch, in bytes: that of the standard tier. A dedicated hub takes 20 MB, which would come in late.
_BATCH = 1 << 20

#: LinkPool of a task at a time: each has a thread, which mostly waits.
_MOST_LINKS = 16

#: Seconds after which an unused link is not used again: the hub may have closed it (after 240 s of silence), which is
#: seen only when a batch is sent, and that might then be there twice.
_LINK_IDLE = 60.0

#: Seconds for which a hub's partitions are remembered.
_PARTITIONS_AGE = 60.0

#: Seconds between two attempts: doubled from the first to the second.
_PAUSES = (0.1, 5.0)


@dataclass
class SendResult:
    """What a task has sent: events, their bytes as messages, the batches, how often the hub was too busy, how many
    batches were sent again after an answer was lost (whose events may be there twice), and how many rows were skipped.
    `problem` is why the first of these could not be sent."""

    events: int = 0
    bytes: int = 0
    batches: int = 0
    busy: int = 0
    again: int = 0
    skipped: int = 0
    problem: str = ""

    def add(self, other: SendResult) -> None:
        """Add what another task, or thread, has sent."""
        for name in ("events", "bytes", "batches", "busy", "again", "skipped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.problem = self.problem or other.problem


class LinkPool:
    """The open links of this process that no task uses, one for each partition of a hub. For several threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop all without closing them: in a forked process they are the parent's."""
        self._lock = threading.Lock()
        self._kept: dict[tuple[Connection, str | None], tuple[float, Sender]] = {}
        self._partitions: dict[Connection, tuple[float, tuple[str, ...]]] = {}

    def take(self, connection: Connection, partition: str | None) -> Sender:
        """A link that is open already, or a new one."""
        now = time.monotonic()
        with self._lock:
            old = [key for key, (since, _) in self._kept.items() if now - since > _LINK_IDLE]
            useless = [self._kept.pop(key)[1] for key in old]
            _, kept = self._kept.pop((connection, partition), (0.0, None))
        for each in useless:
            each.close()
        return kept or Sender(connection, partition)

    def keep(self, connection: Connection, partition: str | None, sender: Sender) -> None:
        """Keep a link that can be used again."""
        with self._lock:
            self._kept[connection, partition] = (time.monotonic(), sender)

    def partitions(self, connection: Connection, timeout: float) -> tuple[str, ...]:
        """The ids of the hub's partitions. Raises `HubUnavailableError`, also if it has not answered for `timeout`
        seconds, or `ClientVersionError`."""
        now = time.monotonic()
        since, found = self._partitions.get(connection, (-math.inf, ()))
        if now - since > _PARTITIONS_AGE:
            # one half to connect, the other to be answered
            with HubMetadata(connection, "$Default", response_timeout=timeout / 2) as metadata:
                found = metadata.partition_ids()
            self._partitions[connection] = (now, found)
        return found


#: Of this process: Spark reuses a worker process, and with it its modules, for many tasks.
LINK_POOL = LinkPool()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LINK_POOL.forget)


class _Stopped(Exception):
    """Another thread of the task has failed."""


class WriteTask:
    """Sends the rows of one task. `links` are kept from task to task."""

    def __init__(self, options: WriteOptions, columns: Columns, links: LinkPool = LINK_POOL) -> None:
        self._options, self._columns, self._links = options, columns, links
        self._stop = threading.Event()
        self._most = 0

    def write(self, rows: Iterable[pa.RecordBatch]) -> SendResult:
        """Send all rows: those of a partition, so also those with one key, in their order.

        Raises `UnsendableEventError` before anything was sent of the rows around that one, `HubUnavailableError` or
        `ClientVersionError`. What was sent before that is in the hub.
        """
        sent = SendResult()
        with ThreadPoolExecutor(_MOST_LINKS, "ehbalance-send") as pool:
            sending: list[Future[SendResult]] = []
            try:
                for part in self._encoded(rows, sent):
                    _await(sending, sent)
                    sending = [pool.submit(self._send, target, keyed.values()) for target, keyed in part.items()]
                _await(sending, sent)
            except _Stopped:  # here, while more was encoded
                _await(sending, sent)
                raise
            except BaseException:
                self._stop.set()
                raise
        return sent

    def unsendable(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that the hub would not take, with a last column `reason`. Nothing is sent. The columns of an event
        come first in `rows`. Raises as `write`."""
        for made, batch in self._with_rows(rows):
            yield made.unsendable(batch)

    def _encoded(self, rows: Iterable[pa.RecordBatch], sent: SendResult) -> Iterator[Events]:
        """The events of each part of the rows."""
        part: Events = {}
        size = 0
        for made, batch in self._with_rows(rows):
            made.add(batch, part)
            sent.skipped, sent.problem = made.skipped, made.problem
            size += batch.nbytes + _ROW * batch.num_rows
            if size >= _PART:
                yield part
                part, size = {}, 0
        yield part

    def _with_rows(self, rows: Iterable[pa.RecordBatch]) -> Iterator[tuple[RowEncoder, pa.RecordBatch]]:
        """What makes events, with each batch."""
        made: RowEncoder | None = None
        for batch in _slices(rows):
            if self._stop.is_set():
                raise _Stopped
            check_topic(batch, self._columns, self._options.connection.hub)
            if made is None:
                made = RowEncoder(self._columns, self._partitions, self._limit, self._options.on_unsendable)
            yield made, batch

    def _partitions(self) -> Sequence[str]:
        def ask(deadline: Deadline) -> Sequence[str]:
            try:
                return self._links.partitions(self._options.connection, deadline.attempt_end - time.monotonic())
            except (ServerBusyError, MissingError, NetworkError, CredentialsRefusedError):
                raise
            except HubUnavailableError as error:
                raise TransientError(str(error)) from error

        return self._retried(ask, None)

    def _limit(self, target: str | None = None) -> int:
        """The size of the largest batch, by the link of the first event."""
        if not self._most:
            self._most = self._attempted(target, Sender.most_bytes, SendResult(), {})
        return self._most

    def _send(self, target: str | None, keyed: Iterable[Keyed]) -> SendResult:
        sent = SendResult()
        try:
            for window in windows(keyed, min(self._most, _BATCH)):
                events, sizes = sum(each.events for each in window), sum(len(each.payload) for each in window)
                sent.add(SendResult(events, sizes, len(window)))
                unanswered: dict[int, Batch] = {}
                self._attempted(target, partial(Sender.send, window=window), sent, unanswered)
                sent.again += len(unanswered)
        except BaseException:
            self._stop.set()
            raise
        return sent

    def _attempted(
        self, target: str | None, call: Callable[..., _T], sent: SendResult, unanswered: dict[int, Batch]
    ) -> _T:
        """What `call` returns for a link to `target`, tried again as by `_retried`, each time on another link.
        `unanswered` is filled with the batches that may be sent twice, by identity."""
        connection = self._options.connection

        def attempt(deadline: Deadline) -> _T:
            sender = self._links.take(connection, target)
            try:
                result = call(sender, deadline=deadline)
            finally:
                sent.busy += sender.busy
                unanswered.update((id(batch), batch) for batch in sender.unanswered)
            self._links.keep(connection, target, sender)
            return result

        return self._retried(attempt, target)

    def _retried(self, attempt: Callable[[Deadline], _T], target: str | None) -> _T:
        """What `attempt` returns. What may pass is tried again until `sendTimeout` has passed in which no batch was
        taken. A hub that is too busy is waited for as long as it answers so. A token that is refused is renewed, once
        between two batches that are taken. What is missing for a moment may be only lost by a link."""
        deadline, missing = Deadline(self._options.send_timeout), MissingHubCheck()
        pause, renewed = _PAUSES[0], False
        while not self._stop.is_set():
            deadline.begin_attempt()
            end = deadline.end
            try:
                return attempt(deadline)
            except (ServerBusyError, CredentialsRefusedError, TransientError, MissingError) as error:
                if taken := deadline.end > end:
                    renewed = False
                if taken or isinstance(error, (ServerBusyError, CredentialsRefusedError)):
                    missing.answered()
                if isinstance(error, ServerBusyError):
                    self._stop.wait(busy_wait())
                    deadline.postpone()
                    continue
                if isinstance(error, CredentialsRefusedError):
                    if renewed:
                        raise
                    self._options.connection.renew()
                    renewed = True
                    continue
                if missing.is_confirmed_by(error):
                    raise
                left = deadline.end - time.monotonic()
                pause = max(_PAUSES[0], min(2 * pause, _PAUSES[1], left / 2))
                if pause >= left:
                    raise HubUnavailableError(self._given_up(target, error)) from error
                _LOG.info("partition %s: a batch was not sent, trying again: %s", target, error)
                self._stop.wait(pause)
        raise _Stopped

    def _given_up(self, target: str | None, error: Exception) -> str:
        where = self._options.connection.hub_name if target is None else f"partition {target}"
        why = str(error).rstrip(".")
        return (
            f"{where} has taken nothing for {self._options.send_timeout:g} s (sendTimeout): {why}. The task fails; if "
            "Spark runs it again, events that were sent before are there twice"
        )


def _slices(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of about `_PART` bytes at most: Spark makes them of a number of rows."""
    for batch in rows:
        if batch.num_rows:
            length = math.ceil(batch.num_rows / math.ceil(max(batch.nbytes, 1) / _PART))
            yield from (batch.slice(start, length) for start in range(0, batch.num_rows, length))


def _await(sending: Iterable[Future[SendResult]], sent: SendResult) -> None:
    """Wait for the threads that send. Raises the error of one that has failed by itself."""
    failed: BaseException | None = None
    for each in sending:
        try:
            sent.add(each.result())
        except _Stopped:
            continue
        except BaseException as error:
            failed = failed or error
    if failed is not None:
        raise failed
