"""Modules that Python workers exclude from garbage collection."""

from __future__ import annotations

import subprocess
import sys

#: Like Spark's daemon: a collection after every task.
_TASKS = """
import gc
from spark_ehbalance.spark.worker_memory import freeze_modules
for _ in range(5):
    freeze_modules()
    gc.collect()
    print(gc.get_freeze_count(), len(gc.get_objects()))
"""


def test_modules_are_frozen_in_the_second_and_third_task_only() -> None:
    done = subprocess.run([sys.executable, "-c", _TASKS], capture_output=True, text=True, check=True, timeout=60)
    frozen, collected = zip(*(map(int, line.split()) for line in done.stdout.splitlines()), strict=True)
    assert frozen[0] == 0
    assert frozen[1] > collected[0] / 2, "most of what the first task has loaded"
    assert frozen[2] >= frozen[1]
    assert frozen[2:] == (frozen[2],) * 3, "no garbage of later tasks is kept"
    assert collected[-1] < collected[0] / 10, "a collection has little to look at"
