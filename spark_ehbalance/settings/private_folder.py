"""A folder that only this user can use, through which the user's processes on one machine communicate."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def make_private(folder: Path) -> None:
    """Create `folder` unless it exists. Raises `OSError`, for example if other users can use the folder or own it."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    check_private(folder)


def check_private(folder: Path) -> None:
    """Raise `OSError` unless only this user can use the folder."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{folder} must be a folder (not a link) that only this user can use, so remove it, or set TMPDIR"
        )
