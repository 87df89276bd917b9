"""Makes a local lease table unreachable for a while, for readers and writers alike, and from one moment to the next.

The table's folder changes places with a plain file, by one system call (`renameat2` with `RENAME_EXCHANGE`). Every
path below it then ends in "not a directory". Permissions would not stop root, and renaming the folder alone would let
a writer that holds the table make the folder anew and commit into it.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class Outage:
    """The table at `folder` is away between `begin` and `end`. Linux only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._aside = folder.with_name(folder.name + ".away")
        self.active = False

    def begin(self) -> None:
        """Take the table away. Raises `OSError`."""
        self._aside.touch()
        exchange(self._folder, self._aside)
        self.active = True

    def end(self) -> None:
        """Bring it back; a second call does nothing."""
        if self.active:
            exchange(self._folder, self._aside)
            self.active = False


def exchange(one: Path, other: Path) -> None:
    """Let two paths change places, in one step. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError("taking the lease table away needs Linux's renameat2")
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))
