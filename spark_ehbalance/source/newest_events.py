"""What tasks tell their query's planner: the partitions' newest events, and when events were enqueued.

Event Hubs answers 50 questions about partitions a second: with hundreds of partitions the planner would ask about each
only now and then. But a receiver gets with each event which one is the partition's newest. So each task sends the
planner what its receivers have got, in UDP datagrams: they need no answer, and one that is lost, or that a firewall
stops, costs nothing, because the planner goes on asking. When an event of a backlog was enqueued only a task can tell.
Each is signed with a key that the planner has made and that
only its tasks know: a forged one could have the planner wait for events that do not exist.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from spark_ehbalance.hub.wire.tracking import Newest
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: If asking about all partitions takes more seconds than that, tasks send what they know: a batch takes about as long.
SLOW = 5.0

#: Partitions in a datagram: about 1,000 bytes, so that it passes every network in one packet.
_IN_ONE = 16

#: Bytes of the largest datagram that is read.
_MOST_BYTES = 4096

#: Takes the newest event of each partition that a task knows.
Note = Callable[[Mapping[str, Newest]], None]

#: Takes the partition and the sequence number of an event that was read, and when it was enqueued.
NoteRead = Callable[[str, int, int], None]

_SIGNATURE_BYTES = hashlib.sha256().digest_size

#: An address of no host, from RFC 5737.
_ANYWHERE = "192.0.2.1"

#: The environment variable by which Spark is told the address that other hosts reach this one by.
_SPARK_ADDRESS = "SPARK_LOCAL_IP"


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    """Where a planner listens. The key is not in `repr`."""

    host: str
    port: int
    key: bytes = field(repr=False)


class Read(NamedTuple):
    """An event that was read: its sequence number, and when it was enqueued, in milliseconds since 1970."""

    sequence_number: int
    enqueued_ms: int


class Tells(NamedTuple):
    """Where a task tells of new events, and where when the first and the last event of its ranges were enqueued; None:
    nowhere."""

    newest: ListenerAddress | None = None
    times: ListenerAddress | None = None


def send(address: ListenerAddress, events: Mapping[str, Newest | Read]) -> None:
    """Send an event of each partition to the planner at `address`. Never fails: nothing depends on it."""
    remaining = iter(events.items())
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.setblocking(False)
        while some := dict(islice(remaining, _IN_ONE)):
            out.sendto(_encoded(some, address.key), (address.host, address.port))


class NewestEventsListener:
    """Receives the datagrams in a thread of its own, once they are needed, and hands on what they say."""

    def __init__(self, note: Note, note_read: NoteRead, round_time: Callable[[], float], peer: str) -> None:
        """`note` and `note_read` get what tasks tell. Newest events are needed from when `round_time`, the seconds in
        which the hub can be asked about each partition, is longer than `SLOW`. `peer` is the hub's host: tasks on other
        hosts reach this one by the address by which it reaches that one."""
        self._note, self._note_read = note, note_read
        self._round_time = round_time
        self._peer = peer
        self._key = secrets.token_bytes(32)
        self._tried = self._slow = self._closed = False
        self._socket: socket.socket | None = None

    def address(self) -> ListenerAddress | None:
        """Where tasks send newest events; None while that is not needed, or if this host cannot listen."""
        self._slow = self._slow or self._round_time() > SLOW
        return self.listening() if self._slow else None

    def listening(self) -> ListenerAddress | None:
        """Where tasks send datagrams; None if this host cannot listen."""
        if not self._tried:
            self._tried = True
            self._start()
        if self._socket is None:
            return None
        host, port = self._socket.getsockname()
        return ListenerAddress(host, port, self._key)

    def _start(self) -> None:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            made.bind((os.environ.get(_SPARK_ADDRESS) or _address_towards(self._peer), 0))
        except OSError as error:
            made.close()
            _LOG.warning("no port for what tasks hear of new events (%s): the hub is asked, which takes longer", error)
            return
        self._socket = made
        threading.Thread(target=self._run, args=(made,), name="ehbalance-newest", daemon=True).start()

    def close(self) -> None:
        """Stop listening. May be called twice."""
        listening, self._socket, self._tried, self._closed = self._socket, None, True, True
        if listening is not None:
            with contextlib.suppress(OSError):
                listening.sendto(b"", listening.getsockname())  # wakes the thread, which closes the socket

    def _run(self, listening: socket.socket) -> None:
        with listening:
            while not self._closed:
                datagram = b""
                with contextlib.suppress(OSError):
                    datagram = listening.recv(_MOST_BYTES)
                events = _decoded(datagram, self._key)
                for partition, each in events.items():
                    if isinstance(each, Read):
                        self._note_read(partition, *each)
                if newest := {p: each for p, each in events.items() if isinstance(each, Newest)}:
                    self._note(newest)


def _address_towards(peer: str) -> str:
    """The address of the interface by which this host reaches `peer`, or any other host if that name means nothing
    here, as behind a proxy. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except OSError:
            probe.connect((_ANYWHERE, 9))
        return str(probe.getsockname()[0])


def _encoded(events: Mapping[str, Newest | Read], key: bytes) -> bytes:
    text = json.dumps(events).encode()
    return hmac.digest(key, text, "sha256") + text


def _decoded(datagram: bytes, key: bytes) -> dict[str, Newest | Read]:
    """What a datagram says; nothing if it is not signed with `key`, or is not understood."""
    signature, text = datagram[:_SIGNATURE_BYTES], datagram[_SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, hmac.digest(key, text, "sha256")):
        return {}
    try:
        return {str(partition): _event(*each) for partition, each in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):  # from a task of another version
        return {}


def _event(number: int, *more: str | int) -> Newest | Read:
    if len(more) == 1:
        return Read(int(number), int(more[0]))
    offset, at = more
    return Newest(int(number), str(offset), int(at))
