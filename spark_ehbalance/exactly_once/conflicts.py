"""Reasons for failed commits: conflicts and root causes."""

from __future__ import annotations

from typing import Any

from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException

from spark_ehbalance.dependencies import Py4JJavaError
from spark_ehbalance.exactly_once.protocol import Conflict

#: Delta's exceptions that an append or a MERGE can raise.
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

#: Prefix of Java exceptions after which the outcome of a commit is unknown.
_UNKNOWN = "java.io."


def find_conflict(error: Exception) -> Conflict | None:
    """The kind of conflict that caused a commit's `error`; None if a retry would not help."""
    # After `import delta`, Delta's conflicts are raised as Python exceptions that do not contain the Java exception.
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
    if isinstance(error, PySparkException):  # Spark Connect's message contains the name
        return next((conflict for name, conflict in _CONFLICTS.items() if name in str(error)), None)
    return None


def root_cause(error: Exception) -> str:
    """The first line of the innermost cause in the JVM, or of `error` if it is not from the JVM."""
    cause = _thrown(error)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    return (str(error) if cause is None else str(cause.toString())).partition("\n")[0]


def _thrown(error: Exception) -> Any:
    """The JVM's exception; None if unknown."""
    return getattr(error, "java_exception" if isinstance(error, Py4JJavaError) else "_origin", None)


#: The py4j and pyspark exceptions that wrap JVM exceptions.
JVM_ERRORS = (Py4JJavaError, CapturedException)
