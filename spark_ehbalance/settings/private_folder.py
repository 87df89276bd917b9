"""A folder that only this user can use, for communication of one user's processes on one machine."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def make_private(folder: Path) -> None:
    """Create `folder` unless it exists. Raises `OSError`, also if others can use it or may have created it."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    check_private(folder)


def check_private(folder: Path) -> None:
    """Raise `OSError` unless only this user can use the folder."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{folder} must be a folder, not a link, that only this user can use: remove it, or set TMPDIR"
        )
