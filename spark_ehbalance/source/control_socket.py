"""Notices from a query's driver to its planner: a batch has ended, or the query is to leave its group.

The planner is a process of its own, and Spark tells it of a batch's end only when it asks for the next one, which with
a long trigger is minutes later. So it listens on a local socket whose name follows from its owner id and group, for
whoever is the same user on the same machine: the listener that `spark_ehbalance.register` installs, and
`spark_ehbalance.stop`. Without notices nothing is lost, but handovers wait. Systems without Unix sockets do without.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LOG = logging.getLogger(__name__)

#: Bytes of the largest notice: an offset with 2,000 partitions has 120 KB.
_LARGEST = 1 << 20

#: Seconds that a sender may take altogether, on a machine that is too busy.
_PATIENCE = 2.0

#: Senders that are listened to at once; a driver has one thread that sends.
_SENDERS = 16


def _address(reader: str) -> str:
    """The socket of `reader`'s planner. The name is short: there is a limit of about 100 bytes."""
    return str(_folder() / hashlib.sha256(reader.encode()).hexdigest()[:24])


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"ehbalance-{os.getuid()}"


def _check_folder() -> None:
    """Raises OSError if the folder is not this user's alone: whoever owns it hears what is sent, and answers."""
    found = _folder().lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{_folder()} must be a folder, no link, that only this user can use: remove it")


def send(reader: str, notice: dict[str, Any]) -> bool | None:
    """Tell `reader`'s planner (see `StreamOffset.reader`), and return its answer; None if there is no such planner on
    this machine.

    A planner that is there but does not answer in time, on a machine that is too busy, has answered no.
    """
    if not hasattr(socket, "AF_UNIX"):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
        sender.settimeout(_PATIENCE)
        try:
            _check_folder()
            sender.connect(_address(reader))
            sender.sendall(json.dumps(notice).encode())
            sender.shutdown(socket.SHUT_WR)
            return {b"yes": True, b"no": False}.get(sender.recv(3))
        except (TimeoutError, BlockingIOError):
            return False
        except OSError:
            return None


class PlannerControl:
    """Receives notices for `reader`, each in a thread, and passes one at a time to `read`, which answers yes or no;
    until closed."""

    def __init__(self, reader: str, read: Callable[[dict[str, Any]], bool]) -> None:
        self._read = read
        self._reading = threading.Lock()
        self._places = threading.Semaphore(_SENDERS)
        self._closed = threading.Event()
        self._socket: socket.socket | None = None
        if not hasattr(socket, "AF_UNIX"):
            return
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._path = _address(reader)
            with contextlib.suppress(FileExistsError):
                _folder().mkdir(mode=0o700)
            _check_folder()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)  # left by an earlier life, which is fenced
            listener.bind(self._path)
            listener.listen()
            self._inode = os.stat(self._path).st_ino
        except OSError as error:  # such as a temporary folder with too long a name: all goes on without notices
            listener.close()
            _LOG.warning("no notices are taken from the query's driver: %s", error)
            return
        self._socket = listener
        threading.Thread(target=self._listen, name="ehbalance-notices", daemon=True).start()

    def close(self) -> None:
        """Take no more notices."""
        self._closed.set()
        if self._socket is not None:
            # Closing alone would leave the thread waiting.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                if os.stat(self._path).st_ino == self._inode:  # else a later life of the query listens there by now
                    os.unlink(self._path)
            self._socket.close()

    def _listen(self) -> None:
        assert self._socket is not None
        while not self._closed.is_set():
            self._places.acquire()
            try:
                sender, _ = self._socket.accept()
                threading.Thread(target=self._hear, args=(sender,), name="ehbalance-notice", daemon=True).start()
            except (OSError, RuntimeError):  # closed; or the process has no more files or threads, for a while
                self._places.release()
                self._closed.wait(1.0)

    def _hear(self, sender: socket.socket) -> None:
        with sender:
            try:
                notice = json.loads(_received(sender))
                with self._reading:
                    answer = self._read(notice)
                sender.sendall(b"yes" if answer else b"no")
            except BaseException as error:  # whatever it was, the query goes on
                _LOG.warning("a notice could not be read: %r", error)
            finally:
                self._places.release()


def _received(sender: socket.socket) -> bytes:
    """All that `sender` says. Raises OSError if it takes too long, ValueError if it is too much."""
    deadline, text = time.monotonic() + _PATIENCE, bytearray()
    while len(text) <= _LARGEST:
        sender.settimeout(max(0.001, deadline - time.monotonic()))
        part = sender.recv(65536)
        if not part:
            return bytes(text)
        text += part
    raise ValueError(f"it is longer than {_LARGEST} bytes")
