"""Pickles the import path along with a data source, so that another process finds this package.

What came by Spark Connect's `addArtifacts` is on the path of every Python that Spark starts for the session, but not on
that of a stream's planner (seen with 4.2.0). The planner gets the data source pickled, from another Python of the same
machine. So the pickle extends the path before it imports the package.
"""

from __future__ import annotations

import sys
from typing import Any

#: An expression, as a function would be pickled by its module, which cannot be imported yet.
_ARRIVE = """(
    [__import__("sys").path.append(way) for way in ways if way not in __import__("sys").path],
    (source := getattr(__import__(module, fromlist=[name]), name)).__new__(source),
)[1]"""


class WithImportPath:
    """To be inherited by a data source."""

    def __reduce__(self) -> tuple[Any, ...]:
        names = {"module": type(self).__module__, "name": type(self).__name__, "ways": list(sys.path)}
        return eval, (_ARRIVE, names), self.__dict__
