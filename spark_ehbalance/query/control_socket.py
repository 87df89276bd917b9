"""The control socket, through which a query's driver reports finished batches to the planner, and requests that the
query leave its group.

Spark reports the end of a batch only with its next request, which comes minutes later if the trigger interval is long.
So the planner, which is a separate process, listens on a local socket whose name is derived from its `PlannerAddress`.
The senders are run by the same user on the same machine: the listener of `spark_ehbalance.register`,
`spark_ehbalance.stop`, and tasks. Without these messages (for example, on systems without Unix sockets), handovers wait
for the next trigger.

Wire format: the sender writes one JSON object and shuts down its side of the connection; the answer is `yes`, `no`, a
JSON object, or empty after an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Maximum size of a message in bytes; an offset for 2,000 partitions takes 120 KB.
MAX_MESSAGE_BYTES = 1 << 20

#: Maximum time for one message in seconds, long enough even for a busy machine.
_TIMEOUT = 2.0

#: Maximum length of a socket's path: 107 bytes on Linux, 103 on macOS.
_MAX_PATH_BYTES = 103

_NAME_LENGTH = 24


#: The answer to a message: whether the request was carried out, or an object.
Answer = bool | dict[str, Any]

Handle = Callable[[dict[str, Any]], Answer]


class PlannerAddress(NamedTuple):
    """Identifies a planner on its machine by the `lineage` of its offsets and by `jvm`, the process id of the driver's
    JVM (0 if unknown). Two queries of one JVM never run from copies of the same checkpoint."""

    lineage: str
    jvm: int = 0


def socket_path(planner: PlannerAddress) -> Path:
    """The planner's socket. Raises `OSError` on systems without Unix sockets."""
    if not hasattr(socket, "AF_UNIX"):
        raise OSError("this system has no Unix sockets")
    name = f"{planner.lineage}@{planner.jvm}"
    return _folder() / hashlib.sha256(name.encode()).hexdigest()[:_NAME_LENGTH]


def send(planner: PlannerAddress, message: dict[str, Any]) -> Answer | None:
    """Send `message` to the planner and return its answer. Returns False if the planner does not answer in time, and
    None if it does not exist on this machine or failed to handle the message."""
    try:
        return _send_to_path(_path(planner), message)
    except OSError:
        return None


def send_until_accepted(planner: PlannerAddress, message: dict[str, Any]) -> bool:
    """Send `message` to the planner, then to the user's other planners on this machine until one of them answers yes.
    Returns whether one did. If `send` to the first planner returns None, the others are not contacted."""
    if send(planner, message) is None:
        return False
    own = _path(planner)
    for path in own.parent.iterdir():
        with contextlib.suppress(OSError):  # the planner was killed and left its socket behind
            if path != own and _send_to_path(path, message) is True:
                return True
    return False


def request(planner: PlannerAddress, question: dict[str, Any]) -> dict[str, Any] | None:
    """Send `question` to the planner and return the object in its answer. Returns None if the planner does not answer
    in time, fails to handle the question, or answers with anything but an object.

    Raises `ConnectionError` if the planner does not exist on this machine.
    """
    try:
        answer = _exchange(_path(planner), question)
    except (TimeoutError, BlockingIOError):
        return None
    except OSError as error:
        raise ConnectionError(f"the query's planner cannot be reached: {error}") from error
    return json.loads(answer) if answer.startswith(b"{") else None


def _path(planner: PlannerAddress) -> Path:
    """The path of the planner's socket; if it does not exist, the path for the same address without the JVM."""
    path = socket_path(planner)
    return path if path.exists() else socket_path(planner._replace(jvm=0))


def _send_to_path(path: Path, message: dict[str, Any]) -> Answer | None:
    """Like `send`, to the socket at `path`. Raises `OSError` if no planner listens there."""
    try:
        answer = _exchange(path, message)
    except (TimeoutError, BlockingIOError):
        return False
    return json.loads(answer) if answer.startswith(b"{") else {b"yes": True, b"no": False}.get(answer)


def _exchange(path: Path, message: dict[str, Any]) -> bytes:
    """The planner's answer. Raises `OSError`; `TimeoutError` and `BlockingIOError` if the planner is busy."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
        sender.settimeout(_TIMEOUT)
        _check_private(path.parent)  # the folder's owner could read and answer messages
        sender.connect(str(path))
        sender.sendall(json.dumps(message).encode())
        sender.shutdown(socket.SHUT_WR)
        return _receive_all(sender)


class PlannerControl:
    """The planner's end of the control socket. The constructor opens nothing."""

    def __init__(self, planner: PlannerAddress) -> None:
        self.planner = planner
        self._closed = threading.Event()
        self._socket: socket.socket | None = None

    def start(self, handle: Handle) -> None:
        """Listen until closed, and answer each message with the result of `handle`. If the socket cannot be opened,
        this only logs a warning."""
        if not hasattr(socket, "AF_UNIX"):
            return
        self._path = socket_path(self.planner)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _make_private(_folder())
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()  # left by an earlier process, which is fenced
            listener.bind(str(self._path))
            listener.listen()
            self._inode = self._path.stat().st_ino
        except OSError as error:  # for example, others have access to the folder
            listener.close()
            _LOG.warning("could not open the control socket, so handovers wait for the next trigger: %s", error)
            return
        self._socket = listener
        threading.Thread(target=self._listen, args=(listener, handle), name="ehbalance-control", daemon=True).start()

    def close(self) -> None:
        """Stop listening. Can be called twice, and even before `start`."""
        self._closed.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # closing would not wake the thread
            with contextlib.suppress(OSError):
                if self._path.stat().st_ino == self._inode:  # otherwise it belongs to a later process
                    self._path.unlink()
            self._socket.close()

    def _listen(self, listener: socket.socket, handle: Handle) -> None:
        while not self._closed.is_set():
            try:
                sender, _ = listener.accept()
            except OSError:  # closed, or out of file descriptors
                self._closed.wait(1.0)
                continue
            self._receive(sender, handle)

    def _receive(self, sender: socket.socket, handle: Handle) -> None:
        with sender:
            try:
                answer = handle(json.loads(_receive_all(sender)))
                text = json.dumps(answer) if isinstance(answer, dict) else "yes" if answer else "no"
                sender.sendall(text.encode())
            except BaseException as error:  # whatever the error, the query must continue
                _LOG.warning("could not handle a control message: %r", error)


def _folder() -> Path:
    """The sockets' folder: in the temporary folder, or in /tmp if the paths would otherwise be too long."""
    name = f"ehbalance-{os.getuid()}"
    folder = Path(tempfile.gettempdir()) / name
    return folder if len(os.fsencode(folder)) + 1 + _NAME_LENGTH <= _MAX_PATH_BYTES else Path("/tmp") / name


def _make_private(folder: Path) -> None:
    """Create `folder` if it does not exist. Raises `OSError`, for example if another user owns or can access it."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _check_private(folder)


def _check_private(folder: Path) -> None:
    """Raise `OSError` unless this user owns `folder` and nobody else can access it."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{folder} must be a folder (not a link) that only this user can access, so remove it, or set TMPDIR"
        )


def _receive_all(sender: socket.socket) -> bytes:
    """Receive the whole message from `sender`. Raises `OSError` on timeout, and `ValueError` if it is too long."""
    deadline, text = time.monotonic() + _TIMEOUT, bytearray()
    while len(text) <= MAX_MESSAGE_BYTES:
        sender.settimeout(max(0.001, deadline - time.monotonic()))
        part = sender.recv(65536)
        if not part:
            return bytes(text)
        text += part
    raise ValueError(f"the message is longer than {MAX_MESSAGE_BYTES} bytes")
