"""Commits from several processes to one table on a local disk."""

from __future__ import annotations

import contextlib
import gc
import os
import re
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
from spark_ehbalance.exactly_once.marks import SequenceRange
from spark_ehbalance.exactly_once.merging import merge_once
from spark_ehbalance.exactly_once.protocol import Write
from spark_ehbalance.exactly_once.target import MERGED
from tests.raising import raises
from tests.spark.tables import events_in
from tests.spark.test_write_once import Writer, event_rows, events_of

pytestmark = [pytest.mark.heavy, pytest.mark.spark]

READ = {"0": SequenceRange(0, 5)}

#: A process that holds the locks on these files until it is killed, as another JVM would.
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
    """Hold the locks on `targets` in another process until the block ends."""
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
    columns = "partition string, sequenceNumber long, body string"
    spark.sql(f"CREATE TABLE delta.`{merged}` ({columns}) USING delta TBLPROPERTIES ('{MERGED}' = 'merge')")
    writers = [Writer(spark, target, READ).through(Write) for _ in range(2)]
    acts = [*(writer.finish for writer in writers), lambda: merge_once(event_rows(spark, 0, 5), merged, None, {})]
    waiting = [threading.Thread(target=act) for act in acts]
    with another_process_commits(Path(target), Path(merged)):
        for thread in waiting:
            thread.start()
        file = re.compile(f"^{target}/_delta_log")
        with raises(TargetError, "EHB_TARGET_LOCKED", file=file), local_lock(spark._jvm, target, 1):
            pass
        assert all(thread.is_alive() for thread in waiting)
    for thread in waiting:
        thread.join(60)
    assert events_in(target) == events_in(merged) == events_of(READ)


def test_lock_separates_threads_of_the_same_jvm(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark._jvm
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    with local_lock(jvm, str(target)):
        for path in (target, link):
            with pytest.raises(TargetError), local_lock(jvm, str(path), 0):
                pass
        for _ in range(10):  # garbage collection would close a file that an attempt left open
            gc.collect()
            jvm.System.gc()
            time.sleep(0.05)
        with pytest.raises(AssertionError), another_process_commits(target):
            pass
    with local_lock(jvm, str(link), 0):
        pass


def _occupied(folder: Path) -> None:
    folder.touch()


def _pipe(folder: Path) -> None:
    """A pipe, which would block `open` forever."""
    folder.mkdir()
    os.mkfifo(folder / ".ehbalance-lock")


def _link(folder: Path) -> None:
    """A link, with which a user could make another user create or lock the other user's files."""
    folder.mkdir()
    (folder / ".ehbalance-lock").symlink_to("aim")


@pytest.mark.parametrize(
    ("make", "cause"),
    [(_occupied, "File exists"), (_pipe, "it is not a plain file"), (_link, "it is not a plain file")],
)
def test_lock_file_of_the_wrong_kind_is_rejected(
    spark: SparkSession, tmp_path: Path, make: Callable[[Path], None], cause: str
) -> None:
    make(tmp_path / "_delta_log")
    with (
        raises(TargetError, "EHB_TARGET_LOCKED", file=re.compile(f"^{tmp_path}"), reason=re.compile(cause)),
        local_lock(spark._jvm, str(tmp_path)),
    ):
        pass
