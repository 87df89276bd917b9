"""The control socket: a query's driver tells the planner that a batch has ended, or that the query is to leave.

The planner is a process of its own, and Spark tells it that a batch has ended only when it asks for the next one: with
a long trigger that is minutes later. So the planner listens on a local socket whose name follows from what identifies
it, its `PlannerAddress`. Processes of the same user on the same machine can use it: the listener that
`spark_ehbalance.register` installs, `spark_ehbalance.stop`, and tasks. Without these messages nothing is lost, but
handovers wait for the next trigger. On systems without Unix sockets there are none.

Wire format: one JSON object until the sender shuts its side down; the answer is `yes`, `no`, a JSON object or nothing
(an error).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from spark_ehbalance.settings.private_folder import check_private, make_private
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Bytes of the largest message: an offset with 2,000 partitions has 120 KB.
MAX_MESSAGE_BYTES = 1 << 20

#: Seconds that a message may take altogether, on a machine that is too busy.
_TIMEOUT = 2.0

#: Bytes of the longest path that a socket may have: 107 on Linux, 103 on macOS.
_MAX_PATH_BYTES = 103

_NAME_LENGTH = 24


#: What a message is answered: done or not, or an object.
Answer = bool | dict[str, Any]

Handle = Callable[[dict[str, Any]], Answer]


class PlannerAddress(NamedTuple):
    """Identifies a planner on its machine: the `lineage` of its offsets, and the process id of the driver's JVM, in
    which no two queries run from one checkpoint or its copies. A planner that does not know its JVM has 0."""

    lineage: str
    jvm: int = 0


def socket_path(planner: PlannerAddress) -> Path:
    """Where that planner listens. Raises `OSError` on systems without Unix sockets."""
    if not hasattr(socket, "AF_UNIX"):
        raise OSError("this system has no Unix sockets")
    name = f"{planner.lineage}@{planner.jvm}"
    return _folder() / hashlib.sha256(name.encode()).hexdigest()[:_NAME_LENGTH]


def send(planner: PlannerAddress, message: dict[str, Any]) -> Answer | None:
    """Send `message` to that planner and return its answer; None if there is no such planner on this machine.

    A planner that does not answer in time, on a machine that is too busy, counts as having answered no.
    """
    try:
        return _sent(_path(planner), message)
    except OSError:
        return None


def send_to_all(planner: PlannerAddress, message: dict[str, Any]) -> bool:
    """Send `message` to that planner, then to the others of this user on this machine. Returns whether one of the
    others answers yes; False without asking them if there is no such planner on this machine."""
    if send(planner, message) is None:
        return False
    own = _path(planner)
    for path in own.parent.iterdir():
        with contextlib.suppress(OSError):  # of a planner that was killed
            if path != own and _sent(path, message) is True:
                return True
    return False


def request(planner: PlannerAddress, question: dict[str, Any]) -> dict[str, Any] | None:
    """Send `question` to that planner and return the object that it answers; None if it answers nothing, in time.

    Raises `ConnectionError` if there is no such planner on this machine.
    """
    try:
        answer = _exchange(_path(planner), question)
    except (TimeoutError, BlockingIOError):
        return None
    except OSError as error:
        raise ConnectionError(f"the query's planner cannot be reached: {error}") from error
    return json.loads(answer) if answer.startswith(b"{") else None


def _path(planner: PlannerAddress) -> Path:
    """Where it listens, maybe without knowing its JVM."""
    path = socket_path(planner)
    return path if path.exists() else socket_path(planner._replace(jvm=0))


def _sent(path: Path, message: dict[str, Any]) -> Answer | None:
    """As `send`, to the planner that listens there. Raises `OSError` if none does."""
    try:
        answer = _exchange(path, message)
    except (TimeoutError, BlockingIOError):
        return False
    return json.loads(answer) if answer.startswith(b"{") else {b"yes": True, b"no": False}.get(answer)


def _exchange(path: Path, message: dict[str, Any]) -> bytes:
    """The planner's answer. Raises `OSError`, of which `TimeoutError` and `BlockingIOError` say that it is too busy."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
        sender.settimeout(_TIMEOUT)
        check_private(path.parent)  # its owner could read the messages and answer them
        sender.connect(str(path))
        sender.sendall(json.dumps(message).encode())
        sender.shutdown(socket.SHUT_WR)
        return _received(sender)


class PlannerControl:
    """The planner's end of the control socket. The constructor opens nothing."""

    def __init__(self, planner: PlannerAddress) -> None:
        self.planner = planner
        self._closed = threading.Event()
        self._socket: socket.socket | None = None

    def start(self, handle: Handle) -> None:
        """Listen until closed: one message after the other is passed to `handle`, which returns the answer. Where no
        socket can be opened, warns and does nothing else."""
        if not hasattr(socket, "AF_UNIX"):
            return
        self._path = socket_path(self.planner)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            make_private(_folder())
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()  # of an earlier process of this query, which is fenced
            listener.bind(str(self._path))
            listener.listen()
            self._inode = self._path.stat().st_ino
        except OSError as error:  # such as a folder that others can use
            listener.close()
            _LOG.warning("the control socket could not be opened, so that handovers wait for triggers: %s", error)
            return
        self._socket = listener
        threading.Thread(target=self._listen, args=(listener, handle), name="ehbalance-control", daemon=True).start()

    def close(self) -> None:
        """Stop listening. May be called twice, and before `start`."""
        self._closed.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # to close it would not wake the thread
            with contextlib.suppress(OSError):
                if self._path.stat().st_ino == self._inode:  # else a later process of the query listens there
                    self._path.unlink()
            self._socket.close()

    def _listen(self, listener: socket.socket, handle: Handle) -> None:
        while not self._closed.is_set():
            try:
                sender, _ = listener.accept()
            except OSError:  # closed; or the process is out of files for a while
                self._closed.wait(1.0)
                continue
            self._receive(sender, handle)

    def _receive(self, sender: socket.socket, handle: Handle) -> None:
        with sender:
            try:
                answer = handle(json.loads(_received(sender)))
                text = json.dumps(answer) if isinstance(answer, dict) else "yes" if answer else "no"
                sender.sendall(text.encode())
            except BaseException as error:  # of whatever kind: the query goes on
                _LOG.warning("a control message could not be handled: %r", error)


def _folder() -> Path:
    """In the temporary folder, or in /tmp if a socket's path would be too long there."""
    name = f"ehbalance-{os.getuid()}"
    folder = Path(tempfile.gettempdir()) / name
    return folder if len(os.fsencode(folder)) + 1 + _NAME_LENGTH <= _MAX_PATH_BYTES else Path("/tmp") / name


def _received(sender: socket.socket) -> bytes:
    """All that `sender` sends. Raises `OSError` if it takes too long, `ValueError` if it is too much."""
    deadline, text = time.monotonic() + _TIMEOUT, bytearray()
    while len(text) <= MAX_MESSAGE_BYTES:
        sender.settimeout(max(0.001, deadline - time.monotonic()))
        part = sender.recv(65536)
        if not part:
            return bytes(text)
        text += part
    raise ValueError(f"it is longer than {MAX_MESSAGE_BYTES} bytes")
