"""Commits to a Delta table on a local disk, one at a time.

Delta looks there whether the commit's file exists and then renames its own to it, which keeps apart the threads of one
JVM only: of two JVMs that commit at the same moment, one may lose its commit without an error.
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

#: In the table's log, which all containers share that can commit. Delta lists a log from a commit's name on, which
#: sorts after a dot; VACUUM leaves the log alone.
_FILE = "_delta_log/.ehbalance-lock"

#: Seconds that other commits may take. A MERGE, which may take minutes, keeps the lock from its begin.
PATIENCE = 600.0

#: Seconds between two attempts; a commit takes 50 ms or more.
_POLL = 0.01

#: By the file's path. Only the thread that holds it opens the file: closing it frees the JVM's lock, whoever took that.
_mutexes: dict[str, threading.Lock] = {}


@contextlib.contextmanager
def commit_lock(spark: SparkSession, table: str) -> Iterator[None]:
    """Keeps out all other users of this lock on the same `table` (a path or an address), in this process and in all
    others of this machine. With a table that is not on a local disk it does nothing; nor with Spark Connect, whose
    server is one JVM.

    Other writers than `write_once`, such as Delta's own append in another JVM, do not use the lock: on a local disk
    their commits and those of `write_once` can still be lost.

    Raises `TargetError` if the lock is not free within `PATIENCE`, or cannot be had.
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
    """The lock on the table in `folder`, which may not exist yet.

    It belongs to the JVM, because that is what commits: it may outlive its Python by a moment, and its end frees the
    lock. It does not keep out those who come after somebody has deleted the file, nor another Python process of the
    same JVM (PySpark starts a JVM for each process; some notebook servers share one).

    Raises `TargetError` if it is not free within `patience` seconds, or if the file cannot be written.
    """
    deadline = time.monotonic() + patience
    file = java(jvm).file(folder, _FILE)
    with contextlib.ExitStack() as held:
        try:
            file = java(jvm).file(file.getParentFile().getCanonicalPath(), file.getName())
            mutex = _mutexes.setdefault(file.getPath(), threading.Lock())
            if free := mutex.acquire(timeout=patience):
                held.callback(mutex.release)
                os.makedirs(file.getParent(), exist_ok=True)
                _create(file.getPath())
                opened = java(jvm).file_output(file, True)
                held.callback(opened.close)  # frees the lock
                while not (free := opened.getChannel().tryLock() is not None) and time.monotonic() < deadline:
                    time.sleep(_POLL)
        except (OSError, Py4JJavaError) as error:
            raise TargetError("EHB_TARGET_LOCKED", file=str(file), reason=root_cause(error)) from error
        if not free:
            reason = f"another process or query kept the lock for {patience:g} s"
            raise TargetError("EHB_TARGET_LOCKED", file=str(file), reason=reason)
        yield


def _create(file: str) -> None:
    """Create `file` for this user alone, unless it is there: whoever can read it could keep it locked. Raises
    `OSError`, also for a link."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    if not stat.S_ISREG(os.lstat(file).st_mode):  # opening a pipe would wait for ever
        raise OSError("it is no plain file: somebody else may have put it there")
