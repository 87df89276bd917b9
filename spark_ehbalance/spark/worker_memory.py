"""Leaves what a Python worker of Spark has loaded out of its garbage collections.

Spark collects all garbage after each task. With pyspark, pandas and pyarrow loaded, some 75,000 objects, that takes
29 ms, more than a small task; after `gc.freeze` it takes 1 ms.
"""

from __future__ import annotations

import gc
import itertools

#: Spark has collected the garbage of the task before. The first task imports what reading needs; libraries load more
#: when they are first used, so that the second freeze finds the rest. No more: what is frozen is never collected.
_FREEZES = (2, 3)

_tasks = itertools.count(1)


def freeze_modules() -> None:
    """To be called at the start of each task of a worker; freezes at the start of the second and third one."""
    if next(_tasks) in _FREEZES:
        gc.freeze()
