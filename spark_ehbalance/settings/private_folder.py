"""A folder that only this user can use: what processes of one user on one machine tell each other is there."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def make_private(folder: Path) -> None:
    """Make `folder` unless it is there. Raises `OSError`, also if others can use it or could have put it there."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    check_private(folder)


def check_private(folder: Path) -> None:
    """Raise `OSError` unless only this user can use the folder: others could read what is there, or change it."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{folder} must be a folder, no link, that only this user can use: remove it, or set TMPDIR"
        )
