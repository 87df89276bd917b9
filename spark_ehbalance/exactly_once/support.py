"""Checks whether a session's delta-spark supports exactly-once transactions."""

from __future__ import annotations

import functools
from typing import Any

from pyspark.sql import DataFrame

from spark_ehbalance.dependencies import Py4JError
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: The required methods, with their numbers of parameters.
_NEEDED = {
    "OptimisticTransaction": {
        ("txnVersion", 1),
        ("commit", 3),
        ("readVersion", 0),
        ("metadata", 0),
        ("readTxn", 0),
        ("snapshot", 0),
    },
    "Snapshot": {("transactions", 0)},
    "DeltaLog": {
        ("startTransaction", 2),
        ("protocolWrite", 1),
        ("store", 0),
        ("getChangeLogFiles", 4),
        ("newDeltaHadoopConf", 0),
    },
    "commands.WriteIntoDelta": {("writeAndReturnCommitData", 4), ("copy", 9)},
    "DeltaOperations$Write": {("copy", 9)},
    "actions.SetTransaction": {("copy", 3)},
}


def has_transactions(df: DataFrame) -> bool:
    """Whether Delta's transactions can set marks in the table's log; if not, MERGE, which has a public API, is used.
    Transactions are unavailable on Spark Connect, which has no access to the JVM, and in Delta versions with different
    methods."""
    jvm: Any = getattr(df.sparkSession, "_jvm", None)
    return jvm is not None and _has_transactions(jvm)


@functools.lru_cache(maxsize=1)  # cached, because it takes a second
def _has_transactions(jvm: Any) -> bool:
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    try:
        for name, methods in _NEEDED.items():
            found = jvm.java.lang.Class.forName(f"org.apache.spark.sql.delta.{name}", False, loader).getMethods()
            if missing := methods - {(method.getName(), method.getParameterCount()) for method in found}:
                why = f"Delta {jvm.io.delta.package.VERSION()} lacks the expected method {name}.{min(missing)[0]}"
                break
        else:
            return True
    except (Py4JError, TypeError) as error:  # py4j raises these for a missing class and a missing package
        why = str(error).splitlines()[0]
    _LOG.warning(
        "write_once uses MERGE, which costs more. From now on, all writers to its targets use MERGE too. reason=%r",
        why,
    )
    return False
