"""Processes of one host take turns at fetching tokens, and hand on what they have got.

The instance metadata service of a machine refuses about fifty processes that ask it at once (429), and a host has a
Python worker for each core. Here the first one asks, and the others find its token.

Where tokens are handed on: in a file of a folder in memory (`/dev/shm`), which no disk and no backup ever holds. Only
this user can use the folder and the file, and they are used only if that is so. Processes of the same user could read
each other's memory anyway. Where there is no such folder the processes only take turns. To whom: to those that would
get the same token by themselves, which the name of the `Turns` says.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from spark_ehbalance.values.private_folder import make_private

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

#: Memory that processes share as files, on Linux.
_MEMORY = Path("/dev/shm")
_MOUNTS = Path("/proc/mounts")

#: Seconds that a process waits for its turn, give or take a half so that not all go on at once: then it fetches a token
#: by itself. azure-identity's requests to a service that is busy take longer only when nobody gets a token.
_PATIENCE = 10.0

#: Seconds between two looks whether it is this process's turn, at most.
_LOOK = 0.05

#: Seconds after which a file that nobody has written is removed: no token is good for longer.
_FORGOTTEN = 86400.0

#: Bytes of the largest file that is read: a token has 1 to 4 KB.
_LARGEST = 65536


class Shared(NamedTuple):
    """A token that a process has fetched, its end, and when it was fetched; both in seconds since 1970."""

    token: str
    expires_on: int
    since: float


class Turn:
    """A process's turn. Without a file there is nobody to hand tokens on to."""

    def __init__(self, file: int | None = None) -> None:
        self._file = file

    def read(self) -> Shared | None:
        """What another process has fetched; None if there is nothing that can be used."""
        if self._file is None:
            return None
        try:
            found = json.loads(os.pread(self._file, _LARGEST, 0))
            return Shared(str(found["token"]), int(found["expires_on"]), float(found["since"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, shared: Shared) -> None:
        """Hand a token on. What cannot be written is not handed on."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, json.dumps(shared._asdict()).encode(), 0)


class Turns:
    """The turns of all processes of this user on this host that have the same `name`: they are one identity.

    `in_memory` is where tokens are handed on, if there is such a folder, and `elsewhere` where the processes wait for
    each other without one.
    """

    def __init__(
        self,
        name: str,
        in_memory: Path | None = None,
        elsewhere: Path | None = None,
        patience: float = _PATIENCE,
    ) -> None:
        self._name, self._patience = name, patience
        self._in_memory, self._elsewhere = in_memory, elsewhere

    @contextlib.contextmanager
    def taken(self, scope: str) -> Iterator[Turn]:
        """Wait for this process's turn to fetch a token for `scope`. If it does not come in time, or where processes
        cannot wait for each other, it goes on alone."""
        file, hands_on = self._opened(scope)
        try:
            come = file is not None and self._waited(file)
            yield Turn(file if come and hands_on and _is_private(file) else None)
        finally:
            if file is not None:
                with contextlib.suppress(OSError):  # not only closed: a forked process may have it open
                    fcntl.flock(file, fcntl.LOCK_UN)
                os.close(file)

    def _opened(self, scope: str) -> tuple[int | None, bool]:
        name = hashlib.sha256(f"{self._name}\n{scope}".encode()).hexdigest()[:32]
        for folder, hands_on in ((self._in_memory, True), (self._elsewhere, False)):
            if folder is None or fcntl is None:
                continue
            with contextlib.suppress(OSError):
                make_private(folder)
                if hands_on:
                    _forget(folder, name)
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                return os.open(folder / name, flags, 0o600), hands_on
        return None, False

    def _waited(self, file: int) -> bool:
        deadline = time.monotonic() + self._patience * random.uniform(0.5, 1.5)
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError:
                if time.monotonic() >= deadline:
                    return False
            time.sleep(random.uniform(0, _LOOK))


class _NoTurns(Turns):
    """For a process that is alone."""

    def __init__(self) -> None:
        super().__init__("")


NO_TURNS = _NoTurns()


def host_turns(name: str) -> Turns:
    """The turns of this host for the identity `name`."""
    if fcntl is None:
        return NO_TURNS
    own = f"ehbalance-tokens-{os.getuid()}"
    return Turns(name, _MEMORY / own if _is_memory() else None, Path(tempfile.gettempdir()) / own)


def _is_private(file: int | None) -> bool:
    """Whether the file is ours, and nobody else can read it."""
    if file is None:
        return False
    found = os.fstat(file)
    own = found.st_uid == os.getuid() and not found.st_mode & 0o077 and found.st_nlink == 1
    return own and stat.S_ISREG(found.st_mode)


def _is_memory() -> bool:
    """Whether what is written to `_MEMORY` stays in memory."""
    with contextlib.suppress(OSError, ValueError):
        return any(line.split()[1:3] == [str(_MEMORY), "tmpfs"] for line in _MOUNTS.read_text().splitlines())
    return False


def _forget(folder: Path, name: str) -> None:
    """Remove what was not written for long, but for the file `name`."""
    with os.scandir(folder) as entries:
        for each in entries:
            with contextlib.suppress(OSError):
                if each.name != name and time.time() - each.stat(follow_symlinks=False).st_mtime > _FORGOTTEN:
                    os.unlink(each.path)
