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
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LOG = logging.getLogger(__name__)

#: Bytes of the largest notice: an offset with 2,000 partitions has 120 KB.
_LARGEST = 1 << 20


def _address(reader: str, *, create: bool = False) -> str:
    """The socket of `reader`'s planner, in a folder that only this user can use. The name is short: there is a limit
    of about 100 bytes."""
    folder = Path(tempfile.gettempdir()) / f"ehbalance-{os.getuid()}"
    if create:
        folder.mkdir(mode=0o700, exist_ok=True)
    return str(folder / hashlib.sha256(reader.encode()).hexdigest()[:24])


def send(reader: str, notice: dict[str, Any]) -> bool | None:
    """Tell `reader`'s planner (see `StreamOffset.reader`), and return its answer; None if there is no such planner on
    this machine.

    A planner that is there but does not answer in time, on a machine that is too busy, has answered no.
    """
    if not hasattr(socket, "AF_UNIX"):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
        sender.settimeout(2.0)
        try:
            sender.connect(_address(reader))
            sender.sendall(json.dumps(notice).encode())
            sender.shutdown(socket.SHUT_WR)
            return {b"yes": True, b"no": False}.get(sender.recv(3))
        except (TimeoutError, BlockingIOError):
            return False
        except OSError:
            return None


class NoticeBoard:
    """Receives notices for `reader`, in a thread, and passes each to `read`, which answers yes or no; until closed."""

    def __init__(self, reader: str, read: Callable[[dict[str, Any]], bool]) -> None:
        self._read = read
        self._socket: socket.socket | None = None
        if not hasattr(socket, "AF_UNIX"):
            return
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._path = _address(reader, create=True)
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
        while True:
            try:
                sender, _ = self._socket.accept()
            except OSError:
                return
            with sender:
                try:
                    sender.settimeout(2.0)
                    text = b""
                    while (part := sender.recv(65536)) and len(text) <= _LARGEST:
                        text += part
                    sender.sendall(b"yes" if self._read(json.loads(text)) else b"no")
                except BaseException as error:  # a bad notice must not end the thread
                    _LOG.warning("a notice could not be read: %r", error)
