"""A lock that serializes commits to a Delta table on a local disk.

On a local disk, Delta checks that the commit file does not exist and then renames its own file to that name. This is
safe only within a single JVM. If two JVMs commit at the same time, one commit may be lost silently.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from spark_ehbalance.dependencies import Py4JJavaError
from spark_ehbalance.errors import TargetError
from spark_ehbalance.exactly_once.conflicts import root_cause
from spark_ehbalance.exactly_once.java import java

#: The lock file is in the table's log folder, which all writers share, even from different containers. Delta ignores
#: the file because its name sorts before those of commits, and VACUUM skips the folder.
_FILE = "_delta_log/.ehbalance-lock"

#: Seconds to wait for other commits. A MERGE, which may take minutes, holds the lock until it ends.
PATIENCE = 600.0

#: Seconds between two attempts; a commit takes 50 ms or more.
_POLL = 0.01

#: Locks by file path. Only the thread that holds the lock opens the file, because closing the file in any thread
#: releases the JVM's lock.
_mutexes: dict[str, threading.Lock] = {}


@contextlib.contextmanager
def commit_lock(spark: SparkSession, table: str) -> Iterator[None]:
    """Hold the lock on `table` (a path or an address), which excludes all other users of the lock on this machine. Does
    nothing if the table is not on a local disk, or on Spark Connect, whose server is a single JVM.

    Other writers, such as Delta's own append in another JVM, do not use the lock, so commits can be lost if they write
    to the same table. Raises `TargetError` if the lock is not acquired within `PATIENCE`.
    """
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        yield
        return
    path = java(jvm).path(table)
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    if path.getFileSystem(configuration).getUri().getScheme() != "file":
        yield
        return
    with local_lock(jvm, path.toUri().getPath()):
        yield


@contextlib.contextmanager
def local_lock(jvm: Any, folder: str, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock on the table in `folder`, which may not exist yet.

    The JVM owns the lock, because the JVM commits and may outlive its Python process. The lock does not exclude
    processes that start after the file was deleted, or other Python processes that share the JVM (as in some notebook
    servers).

    Raises `TargetError` if the lock is not acquired within `patience` seconds, or if the file cannot be written.
    """
    deadline = time.monotonic() + patience
    file = java(jvm).file(folder, _FILE)
    with contextlib.ExitStack() as stack:
        try:
            file = java(jvm).file(file.getParentFile().getCanonicalPath(), file.getName())
            mutex = _mutexes.setdefault(file.getPath(), threading.Lock())
            if free := mutex.acquire(timeout=patience):
                stack.callback(mutex.release)
                os.makedirs(file.getParent(), exist_ok=True)
                _create(file.getPath())
                opened = java(jvm).file_output(file, True)
                stack.callback(opened.close)  # closing frees the lock
                while not (free := opened.getChannel().tryLock() is not None) and time.monotonic() < deadline:
                    time.sleep(_POLL)
        except (OSError, Py4JJavaError) as error:
            raise TargetError("EHB_TARGET_LOCKED", file=str(file), reason=root_cause(error)) from error
        if not free:
            reason = f"another process or query kept the lock for {patience:g} s"
            raise TargetError("EHB_TARGET_LOCKED", file=str(file), reason=reason)
        yield


def _create(file: str) -> None:
    """Create `file` if it is missing. Only this user may access it, because anyone who can read it could lock it.
    Raises `OSError`, for example if `file` is a link."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    if not stat.S_ISREG(os.lstat(file).st_mode):  # opening a pipe, for example, would block
        raise OSError("it is not a regular file")
