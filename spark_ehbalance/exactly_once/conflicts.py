"""What it means that a commit has failed."""

from __future__ import annotations

from typing import Any

from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException

from spark_ehbalance.dependencies import Py4JJavaError
from spark_ehbalance.exactly_once.protocol import Conflict

#: Those of Delta's exceptions that an append or a MERGE may meet.
_CONFLICTS = {
    "ConcurrentTransactionException": Conflict.MARKS,
    "MetadataChangedException": Conflict.TABLE,
    "ProtocolChangedException": Conflict.TABLE,
    "ConcurrentWriteException": Conflict.TABLE,
    "ConcurrentAppendException": Conflict.TABLE,
    "ConcurrentDeleteReadException": Conflict.TABLE,
    "ConcurrentDeleteDeleteException": Conflict.TABLE,
    "DeltaConcurrentModificationException": Conflict.TABLE,
}

#: Whether the commit was made is not known.
_UNKNOWN = "java.io."


def find_conflict(error: Exception) -> Conflict | None:
    """The conflict that `error`, which came out of a commit, stands for; None if trying again would not help."""
    # Once `delta` has been imported, its exceptions come as Python's own, without their origin.
    if type(error).__name__ in _CONFLICTS:
        return _CONFLICTS[type(error).__name__]
    cause = _thrown(error)
    while cause is not None:
        name: str = cause.getClass().getName()
        if (simple := name.rpartition(".")[2]) in _CONFLICTS:
            return _CONFLICTS[simple]
        if name.startswith(_UNKNOWN):
            return Conflict.UNKNOWN
        cause = cause.getCause()
    if isinstance(error, PySparkException):  # of Spark Connect, whose text begins with the name
        return next((conflict for name, conflict in _CONFLICTS.items() if name in str(error)), None)
    return None


def root_cause(error: Exception) -> str:
    """The first line of the innermost cause in the JVM, or of `error` if it is Python's own."""
    cause = _thrown(error)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    return (str(error) if cause is None else str(cause.toString())).partition("\n")[0]


def _thrown(error: Exception) -> Any:
    """What the JVM threw; None if that is not known."""
    return getattr(error, "java_exception" if isinstance(error, Py4JJavaError) else "_origin", None)


#: What py4j and pyspark raise for what the JVM throws.
JVM_ERRORS = (Py4JJavaError, CapturedException)
