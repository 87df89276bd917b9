"""What the delta-spark of a session offers to write exactly once."""

from __future__ import annotations

import enum
import functools
from typing import Any

from pyspark.sql import DataFrame

from spark_ehbalance.installed import Py4JError
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Versions of delta-spark that the tests use.
_TESTED = ("4.4.",)

#: The methods that are used, with the number of their parameters.
_TRANSACTION = {
    "OptimisticTransaction": {
        ("txnVersion", 1),
        ("commit", 3),
        ("readVersion", 0),
        ("metadata", 0),
        ("readTxn", 0),
        ("snapshot", 0),
    },
    "Snapshot": {("transactions", 0)},
    "DeltaLog": {("startTransaction", 2), ("protocolWrite", 1), ("store", 0)},
    "commands.WriteIntoDelta": {("writeAndReturnCommitData", 4), ("copy", 9)},
    "DeltaOperations$Write": {("copy", 9)},
    "actions.SetTransaction": {("copy", 3)},
}
_READING = {"DeltaLog": {("getChangeLogFiles", 4), ("newDeltaHadoopConf", 0)}}


class Support(enum.Enum):
    """The ways to write, the cheapest first."""

    #: One transaction; the marks from memory and from the log since.
    MEMORY = "memory"
    #: One transaction; the marks from Delta, which computes the table's state anew for it after every commit.
    ASKING = "asking"
    #: MERGE, through Delta's public interface.
    MERGING = "merging"


def support(df: DataFrame) -> Support:
    """The best way that there is. Spark Connect has no access to the JVM; other versions of Delta than the tested ones
    are not trusted to write their log as it is read here."""
    jvm: Any = getattr(df.sparkSession, "_jvm", None)
    return Support.MERGING if jvm is None else _support(jvm)


@functools.lru_cache(maxsize=1)  # a second in a process
def _support(jvm: Any) -> Support:
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()

    def has(needed: dict[str, set[tuple[str, int]]]) -> bool:
        for name, methods in needed.items():
            found = jvm.java.lang.Class.forName(f"org.apache.spark.sql.delta.{name}", False, loader).getMethods()
            if not methods <= {(each.getName(), each.getParameterCount()) for each in found}:
                return False
        return True

    try:
        version = str(jvm.io.delta.package.VERSION())
        if has(_TRANSACTION):
            return Support.MEMORY if version.startswith(_TESTED) and has(_READING) else Support.ASKING
        why = f"Delta {version} has other methods"
    except (Py4JError, TypeError) as error:  # what py4j raises for a class, and for a package, that is not there
        why = str(error).splitlines()[0]
    _LOG.warning(
        "write_once has to use MERGE, which costs more and is what all writers of its targets do then: %s", why
    )
    return Support.MERGING
