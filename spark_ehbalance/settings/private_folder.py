"""A private folder, through which one user's processes on a machine communicate."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def make_private(folder: Path) -> None:
    """Create `folder` if it does not exist. Raises `OSError`, for example if another user owns or can access it."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    check_private(folder)


def check_private(folder: Path) -> None:
    """Raise `OSError` unless this user owns `folder` and nobody else can access it."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{folder} must be a folder (not a link) that only this user can access, so remove it, or set TMPDIR"
        )
