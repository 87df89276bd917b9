"""Pickles the import path together with a data source, so that a stream's planner finds this package.

Packages added with Spark Connect's `addArtifacts` are on the path of every Python process that Spark starts for the
session, except the planner (as of Spark 4.2.0). The planner unpickles the data source that another Python process on
the same machine has pickled, so the pickle extends the path before it imports the package.
"""

from __future__ import annotations

import sys
from typing import Any

#: An expression, because a function is pickled by reference to its module, which cannot be imported yet.
_UNPICKLE = """(
    [__import__("sys").path.append(way) for way in ways if way not in __import__("sys").path],
    (source := getattr(__import__(module, fromlist=[name]), name)).__new__(source),
)[1]"""


class WithImportPath:
    """Base class of a data source whose pickle contains the import path."""

    def __reduce__(self) -> tuple[Any, ...]:
        names = {"module": type(self).__module__, "name": type(self).__name__, "ways": list(sys.path)}
        return eval, (_UNPICKLE, names), self.__dict__
