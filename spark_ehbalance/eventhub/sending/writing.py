"""Sends the rows of a task in parts: encodes and checks one part, then sends it while encoding the next part.

A worker keeps its links open for its next task, as it keeps its receivers (`query.receivers` gives the reasons).
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

from spark_ehbalance.errors import HubUnavailableError, MissingError, describe
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
from spark_ehbalance.eventhub.sending.columns import Events, RowEncoder, SinkColumns, check_topic
from spark_ehbalance.eventhub.sending.write_options import WriteOptions
from spark_ehbalance.eventhub.service_errors import busy_wait, hub_text
from spark_ehbalance.eventhub.wire.encoder import EncodedBatch, Keyed, windows
from spark_ehbalance.eventhub.wire.sending_link import Deadline
from spark_ehbalance.text import logger

_T = TypeVar("_T")

_LOG = logger(__name__)

#: Size in bytes of a part, whose rows are checked before the first of them is sent; a micro-batch's tasks rarely have
#: more.
_PART_BYTES = 32 << 20

#: Additional memory in bytes that Python objects take for a small row with a distinct key.
_ROW_BYTES = 1000

#: Size of a batch in bytes: the standard tier's limit. A dedicated hub accepts 20 MB, but such batches would delay
#: events.
_MAX_BATCH_BYTES = 1 << 20

#: Maximum number of a task's concurrent links. Each has a thread, which mostly waits.
_MAX_LINKS = 16

#: Maximum idle time of a link in seconds. The hub closes a link after 240 s of silence, which the client notices only
#: when it sends a batch, and resending that batch might duplicate its events.
_MAX_LINK_IDLE = 60.0

#: Seconds for which a hub's partition ids are cached, and for a partition that is not one of them: it may be new.
_PARTITION_IDS_AGE, _MISSING_PARTITION_AGE = 60.0, 1.0

#: Minimum and maximum pause between two attempts in seconds. The pause doubles each time.
_PAUSES = (0.1, 5.0)


@dataclass
class SendResult:
    """Counts of a task: events, their bytes as messages, batches, throttled attempts (`busy`), batches that were resent
    after a lost acknowledgement and may have duplicated events (`again`), and skipped rows. `problem` is the reason why
    the first row was skipped."""

    events: int = 0
    bytes: int = 0
    batches: int = 0
    busy: int = 0
    again: int = 0
    skipped: int = 0
    problem: str = ""

    def add(self, other: SendResult) -> None:
        """Add the counts of another task or thread."""
        for name in ("events", "bytes", "batches", "busy", "again", "skipped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.problem = self.problem or other.problem


class LinkPool:
    """The process's idle links to hubs' partitions. Thread-safe."""

    def __init__(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Drop all links without closing them, because in a forked process they belong to the parent."""
        self._lock = threading.Lock()
        self._idle: dict[tuple[Connection, str | None], tuple[float, Sender]] = {}
        self._partitions: dict[Connection, tuple[float, tuple[str, ...]]] = {}

    def take(self, connection: Connection, partition: str | None) -> Sender:
        """Remove and return an idle link, or return a new one."""
        now = time.monotonic()
        with self._lock:
            old = [key for key, (since, _) in self._idle.items() if now - since > _MAX_LINK_IDLE]
            expired = [self._idle.pop(key)[1] for key in old]
            _, idle = self._idle.pop((connection, partition), (0.0, None))
        for sender in expired:
            sender.close()
        return idle or Sender(connection, partition)

    def keep(self, connection: Connection, partition: str | None, sender: Sender) -> None:
        """Keep a link for reuse."""
        with self._lock:
            self._idle[connection, partition] = (time.monotonic(), sender)

    def partitions(self, connection: Connection, wanted: str, timeout: float) -> tuple[str, ...]:
        """The ids of the hub's partitions, which include `wanted` if it exists. Raises `ClientVersionError`, or
        `HubUnavailableError` after at most `timeout` seconds."""
        now = time.monotonic()
        since, ids = self._partitions.get(connection, (-math.inf, ()))
        if now - since > (_PARTITION_IDS_AGE if wanted in ids else _MISSING_PARTITION_AGE):
            # half of the time is for connecting, the other half for the response
            with HubMetadata(connection, "$Default", response_timeout=timeout / 2) as metadata:
                ids = metadata.partition_ids()
            self._partitions[connection] = (now, ids)
        return ids


#: The process's pool: Spark runs many tasks in one worker process.
LINK_POOL = LinkPool()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LINK_POOL.drop)


class _Stopped(Exception):
    """Another thread of the task failed."""


class WriteTask:
    """Sends the rows of a task. The pool `links` outlives the task."""

    def __init__(self, options: WriteOptions, columns: SinkColumns, links: LinkPool = LINK_POOL) -> None:
        self._options, self._columns, self._links = options, columns, links
        self._stop = threading.Event()
        self._most = 0

    def write(self, rows: Iterable[pa.RecordBatch]) -> SendResult:
        """Send all rows, in order per partition and key.

        Raises `HubUnavailableError`, `ClientVersionError` or, before it sends the part with the offending row,
        `UnsendableEventError`. Earlier rows may have been sent.
        """
        sent = SendResult()
        with ThreadPoolExecutor(_MAX_LINKS, "ehbalance-send") as pool:
            sending: list[Future[SendResult]] = []
            try:
                for part in self._encoded(rows, sent):
                    _await(sending, sent)
                    sending = [pool.submit(self._send, target, keyed) for target, keyed in part.items()]
                _await(sending, sent)
            except _Stopped:  # while encoding
                _await(sending, sent)
                raise
            except BaseException:
                self._stop.set()
                raise
        return sent

    def unsendable(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that the hub would reject, with an additional last column `reason`. Sends nothing. The event columns
        must come first in `rows`. Raises the same errors as `write`."""
        encoder = self._encoder()
        for batch in self._checked(rows):
            yield encoder.unsendable(batch)

    def _encoded(self, rows: Iterable[pa.RecordBatch], sent: SendResult) -> Iterator[Events]:
        """The events of the rows, in parts of about `_PART_BYTES` bytes."""
        encoder = self._encoder()
        for part in _parts(self._checked(rows)):
            events = encoder.encode(part)
            sent.skipped, sent.problem = encoder.skipped, encoder.problem
            yield events

    def _encoder(self) -> RowEncoder:
        return RowEncoder(self._columns, self._partitions, self._limit, self._options.on_unsendable)

    def _checked(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in _slices(rows):
            if self._stop.is_set():
                raise _Stopped
            check_topic(batch, self._columns, self._options.connection.hub)
            yield batch

    def _partitions(self, wanted: str) -> Sequence[str]:
        def request(deadline: Deadline) -> Sequence[str]:
            try:
                return self._links.partitions(self._options.connection, wanted, deadline.attempt_end - time.monotonic())
            except (ServerBusyError, MissingError, NetworkError, CredentialsRefusedError):
                raise
            except HubUnavailableError as error:
                raise TransientError(describe(error)) from error

        return self._retried(request, None)

    def _limit(self, target: str | None = None) -> int:
        """Maximum size of a batch, as reported by the link of the first event."""
        if not self._most:
            self._most = self._attempted(target, Sender.most_bytes, SendResult(), {})
        return self._most

    def _send(self, target: str | None, keyed: Iterable[Keyed]) -> SendResult:
        sent = SendResult()
        try:
            for window in windows(keyed, min(self._most, _MAX_BATCH_BYTES)):
                events, sizes = sum(batch.events for batch in window), sum(len(batch.payload) for batch in window)
                sent.add(SendResult(events, sizes, len(window)))
                unanswered: dict[int, EncodedBatch] = {}
                self._attempted(target, partial(Sender.send, window=window), sent, unanswered)
                sent.again += len(unanswered)
        except BaseException:
            self._stop.set()
            raise
        return sent

    def _attempted(
        self, target: str | None, call: Callable[..., _T], sent: SendResult, unanswered: dict[int, EncodedBatch]
    ) -> _T:
        """The result of `call` for a link to `target`, retried as in `_retried`, each time on another link. Records in
        `unanswered`, keyed by `id()`, the batches that may be sent twice."""
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
        """The result of `attempt`, which is retried after transient errors until no batch has been accepted for
        `sendTimeout`.

        Waits without limit for a hub that throttles. Renews refused credentials once per accepted batch. Retries for a
        moment if the hub is missing, because a hub may seem missing after the service has lost a link."""
        deadline, missing = Deadline(self._options.send_timeout), MissingHubCheck()
        pause, renewed = _PAUSES[0], False
        while not self._stop.is_set():
            deadline.begin_attempt()
            end = deadline.end
            try:
                return attempt(deadline)
            except (ServerBusyError, CredentialsRefusedError, TransientError, MissingError) as error:
                if accepted := deadline.end > end:
                    renewed = False
                if accepted or isinstance(error, (ServerBusyError, CredentialsRefusedError)):
                    missing.record_answer()
                if isinstance(error, ServerBusyError):
                    self._stop.wait(busy_wait())
                    deadline.postpone()
                    continue
                if isinstance(error, CredentialsRefusedError):
                    if renewed:
                        raise
                    self._options.connection.renew_credentials()
                    renewed = True
                    continue
                if missing.record_error(error):
                    raise
                left = deadline.end - time.monotonic()
                pause = max(_PAUSES[0], min(2 * pause, _PAUSES[1], left / 2))
                if pause >= left:
                    raise self._timeout(target, error) from error
                _LOG.info(
                    "Attempt failed, retrying: hub=%s partition=%s reason=%s",
                    self._options.connection.hub_name, target, describe(error),
                )  # fmt: skip
                self._stop.wait(pause)
        raise _Stopped

    def _timeout(self, target: str | None, error: Exception) -> HubUnavailableError:
        where = hub_text(self._options.connection.namespace, self._options.connection.hub, target)
        return HubUnavailableError(
            "EHB_SEND_TIMEOUT", where=where, timeout=self._options.send_timeout, reason=describe(error)
        )


def _slices(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Slices of the batches, of at most about `_PART_BYTES` bytes each, because Spark limits only the number of
    rows."""
    for batch in rows:
        if batch.num_rows:
            length = math.ceil(batch.num_rows / math.ceil(max(batch.nbytes, 1) / _PART_BYTES))
            yield from (batch.slice(start, length) for start in range(0, batch.num_rows, length))


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, concatenated to parts of about `_PART_BYTES` bytes."""
    part, size = list[pa.RecordBatch](), 0
    for batch in batches:
        part.append(batch)
        size += batch.nbytes + _ROW_BYTES * batch.num_rows
        if size >= _PART_BYTES:
            yield pa.concat_batches(part)
            part, size = [], 0
    if part:
        yield pa.concat_batches(part)


def _await(sending: Iterable[Future[SendResult]], sent: SendResult) -> None:
    """Wait for the sending threads. Raises the first error other than `_Stopped`."""
    failure: BaseException | None = None
    for future in sending:
        try:
            sent.add(future.result())
        except _Stopped:
            continue
        except BaseException as error:
            failure = failure or error
    if failure is not None:
        raise failure
