"""Makes a local lease table unreachable for a while, for all readers and writers at the same moment.

One system call (`renameat2` with `RENAME_EXCHANGE`) exchanges the table's folder with a plain file, so every path below
it fails with "not a directory". Permissions would not stop root. After a plain rename of the folder, a writer that has
the table open would create the folder again and commit into it.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class Outage:
    """The table at `folder` is unreachable between `begin` and `end`. Linux only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._aside = folder.with_name(folder.name + ".away")
        self.active = False

    def begin(self) -> None:
        """Make the table unreachable. Raises `OSError`."""
        self._aside.touch()
        exchange(self._folder, self._aside)
        self.active = True

    def end(self) -> None:
        """Make the table reachable again. A second call does nothing."""
        if self.active:
            exchange(self._folder, self._aside)
            self.active = False


def exchange(one: Path, other: Path) -> None:
    """Exchange two paths atomically. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError("an outage of the lease table needs Linux's renameat2")
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one))
