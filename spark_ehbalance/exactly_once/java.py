"""JVM classes that every batch needs. Each class is looked up once, because py4j calls the JVM for each part of a
dotted name."""

from __future__ import annotations

import functools
from typing import Any


class Java:
    """Classes and static methods of Java, Scala, Hadoop and Spark."""

    def __init__(self, jvm: Any) -> None:
        self.file: Any = jvm.java.io.File
        self.file_output: Any = jvm.java.io.FileOutputStream
        self.long: Any = jvm.java.lang.Long.valueOf
        self.uuid: Any = jvm.java.util.UUID.fromString
        self.path: Any = jvm.org.apache.hadoop.fs.Path
        self.append: Any = jvm.org.apache.spark.sql.SaveMode.Append
        self.some: Any = jvm.scala.Option.apply
        self.none: Any = jvm.scala.Option.empty()
        self.seq: Any = jvm.PythonUtils.toSeq
        #: The driver's process id.
        self.pid: int = jvm.java.lang.ProcessHandle.current().pid()
        self.map: Any = jvm.PythonUtils.toScalaMap


class DeltaClasses:
    """Classes of delta-spark."""

    def __init__(self, jvm: Any) -> None:
        delta: Any = jvm.org.apache.spark.sql.delta
        self.configs: Any = delta.DeltaConfigs
        self.log: Any = delta.DeltaLog
        self.options: Any = delta.DeltaOptions
        self.set_transaction: Any = delta.actions.SetTransaction
        self.table: Any = delta.catalog.DeltaTableV2
        self.write: Any = delta.commands.WriteIntoDelta
        self.write_operation: Any = getattr(delta, "DeltaOperations$Write")


java = functools.lru_cache(maxsize=1)(Java)
delta_classes = functools.lru_cache(maxsize=1)(DeltaClasses)
