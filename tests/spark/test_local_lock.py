"""Commits of several processes to one table on a local disk."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_ehbalance.errors import TargetError
from spark_ehbalance.exactly_once.local_lock import local_lock
from spark_ehbalance.exactly_once.marks import Extent
from spark_ehbalance.exactly_once.merging import merge_once
from spark_ehbalance.exactly_once.protocol import Write
from spark_ehbalance.exactly_once.target import MERGED
from tests.spark.tables import held
from tests.spark.test_write_once import COLUMNS, Writer, events_of

pytestmark = pytest.mark.spark

READ = {"0": Extent(0, 5)}

#: Another process, which has the locks of these files until it is killed, as another JVM has them.
_HOLDER = """
import fcntl, sys
files = [open(name, "w") for name in sys.argv[1:]]
for file in files:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def another_process_commits(*targets: Path) -> Iterator[None]:
    """A process has the locks on `targets` until the end."""
    files = [target / "_delta_log" / ".ehbalance-lock" for target in targets]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", _HOLDER, *map(str, files)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "locked\n"
        try:
            yield
        finally:
            process.kill()


def test_writers_wait_while_another_process_commits(spark: SparkSession, tmp_path: Path) -> None:
    target, merged = str(tmp_path / "target"), str(tmp_path / "merged")
    spark.sql(f"CREATE TABLE delta.`{merged}` ({COLUMNS}) USING delta TBLPROPERTIES ('{MERGED}' = 'merge')")
    writers = [Writer(spark, target, READ).through(Write) for _ in range(2)]
    rows = spark.sql("SELECT '0' AS partition, id AS sequenceNumber, 'x' AS body FROM range(5)")
    acts = [*(writer.finish for writer in writers), lambda: merge_once(rows, merged, None, {})]
    waiting = [threading.Thread(target=act) for act in acts]
    with another_process_commits(Path(target), Path(merged)):
        for thread in waiting:
            thread.start()
        with pytest.raises(TargetError, match=f"fuser {target}/_delta_log"), local_lock(spark._jvm, target, 1):
            pass
        assert all(thread.is_alive() for thread in waiting)
    for thread in waiting:
        thread.join(60)
    assert held(target) == held(merged) == events_of(READ)


def test_the_lock_keeps_apart_the_threads_of_one_jvm(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark._jvm
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    with local_lock(jvm, str(target)):
        for path in (target, link):
            with pytest.raises(TargetError), local_lock(jvm, str(path), 0):
                pass
        for _ in range(10):  # the collector would close a file that an attempt has left open
            gc.collect()
            jvm.System.gc()
            time.sleep(0.05)
        with pytest.raises(AssertionError), another_process_commits(target):
            pass
    with local_lock(jvm, str(link), 0):
        pass


#: Another user of a group: tries to lock a file in a folder, as one who reads and as one who writes.
_OTHER_USER = """
import fcntl, os, sys
os.chdir(sys.argv[1])  # before: what is above the folder is only root's
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(65534)
for mode, kind in ((os.O_RDONLY, fcntl.LOCK_SH), (os.O_WRONLY, fcntl.LOCK_EX)):
    try:
        fcntl.lockf(os.open(".ehbalance-lock", mode), kind | fcntl.LOCK_NB)
        print("locked")
    except PermissionError:
        print("refused")
"""


@pytest.mark.parametrize(
    ("folder_mode", "mode", "locking"),
    [(0o755, 0o600, ""), (0o775, 0o660, "group"), (0o2775, 0o660, "group"), (0o777, 0o666, "group others")],
)
def test_who_can_write_the_folder_can_lock_and_nobody_else(
    spark: SparkSession, tmp_path: Path, folder_mode: int, mode: int, locking: str
) -> None:
    folder = tmp_path / "_delta_log"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, -1, 4711)
    folder.chmod(folder_mode)
    with local_lock(spark._jvm, str(tmp_path)):
        pass
    file = (folder / ".ehbalance-lock").stat()
    assert (file.st_mode & 0o777, file.st_gid) == (mode, folder.stat().st_gid)
    for who, group in (("group", "4711"), ("others", "65534")) if os.geteuid() == 0 else ():
        command = [sys.executable, "-c", _OTHER_USER, str(folder), group]
        tried = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert tried == ["locked" if who in locking else "refused"] * 2, who


def _occupied(folder: Path) -> None:
    folder.touch()


def _folder(folder: Path) -> None:
    (folder / ".ehbalance-lock").mkdir(parents=True)


def _pipe(folder: Path) -> None:
    """Opening it would wait for ever."""
    folder.mkdir()
    os.mkfifo(folder / ".ehbalance-lock")


@pytest.mark.parametrize(
    ("make", "cause"), [(_occupied, "File exists"), (_folder, "it is no plain file"), (_pipe, "it is no plain file")]
)
def test_a_file_that_cannot_be_locked(
    spark: SparkSession, tmp_path: Path, make: Callable[[Path], None], cause: str
) -> None:
    make(tmp_path / "_delta_log")
    with (
        pytest.raises(TargetError, match=f"{tmp_path}.*cannot be locked.*{cause}"),
        local_lock(spark._jvm, str(tmp_path)),
    ):
        pass


@pytest.mark.parametrize("there", [False, True])
def test_a_link_in_the_place_of_the_lock_is_not_followed(spark: SparkSession, tmp_path: Path, there: bool) -> None:
    """Who can write the folder could have another user create, lock or open up a file of that user."""
    folder, aim = tmp_path / "table" / "_delta_log", tmp_path / "aim"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    if there:
        aim.write_text("of somebody else")
        aim.chmod(0o600)
    (folder / ".ehbalance-lock").symlink_to(aim)
    with pytest.raises(TargetError, match="it is no plain file"), local_lock(spark._jvm, str(folder.parent)):
        pass
    assert aim.exists() == there
    if there:
        assert aim.read_text() == "of somebody else"
        assert aim.stat().st_mode & 0o777 == 0o600
