"""A process that uses secrets in options and saves everything that Spark displays about it, one file per place.

`python -m tests.spark.shown_by_spark` reads a JSON object from its standard input: `folder`, and `ways` (name → options
for queries, including `leaseTable` and `metricsPort`). Spark's DEBUG log, its event log, local files, checkpoints and
tables are in `folder` too.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import traceback
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

import spark_ehbalance
from tests.metrics.prometheus import scrape_page
from tests.spark.settings import QUICK_JAVA, SETTINGS

LOGGING = """
rootLogger.level = debug
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
"""

MODES = ("simple", "extended", "codegen", "cost", "formatted")
PAGES = (
    *("/environment/", "/SQL/", "/SQL/execution/?id=0", "/StreamingQuery/", "/jobs/", "/stages/", "/executors/"),
    *("/storage/", "/executors/threadDump/?executorId=driver"),
)
REST = (
    "environment",
    "sql?details=true&planDescription=true&length=1000",
    "jobs",
    "stages?details=true",
    "allexecutors",
)


class Shown:
    """Saves the text displayed at every place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def keep(self, place: str, text: str) -> None:
        with (self._folder / "".join(character if character.isalnum() else "-" for character in place)).open(
            "a"
        ) as file:
            file.write(text + "\n")

    def printed(self, place: str, show: Callable[[], Any]) -> None:
        """The text that `show` prints or the error that it raises."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                print(show())
            except Exception:
                print(traceback.format_exc())
        self.keep(place, out.getvalue())


def _explain(shown: Shown, place: str, frame: DataFrame) -> None:
    for mode in MODES:
        shown.printed(f"{place} explain", lambda mode=mode: frame.explain(mode=mode))  # type: ignore[misc]


def _run(spark: SparkSession, shown: Shown, way: str, options: dict[str, str], folder: Path) -> None:
    """Run a stream and a batch, with and without mistakes."""
    stream = spark.readStream.format("ehbalance").options(**options).load()
    _explain(shown, f"{way} stream", stream)
    for mistake in (
        lambda: stream.select("nope"),
        lambda: stream.groupBy("partition").agg({"nope": "max"}),
        lambda: stream.collect(),
        lambda: stream.writeStream.format("noop").outputMode("complete").start(),
    ):
        shown.printed(f"{way} mistakes", mistake)
    query = (
        stream.writeStream.format("delta")
        .option("checkpointLocation", str(folder / f"{way}-checkpoint"))
        .start(str(folder / f"{way}-table"))
    )
    query.processAllAvailable()
    java: Any = query._jsq  # type: ignore[attr-defined]
    shown.keep(f"{way} query explain", java.explainInternal(True))
    shown.keep(f"{way} progress", str([progress.json for progress in query.recentProgress]) + str(query.status))
    shown.keep(f"{way} query", f"{stream!r} {query!r} {spark_ehbalance.lag(query)!r}")
    _look(spark, shown, folder)
    shown.keep(f"{way} metrics", scrape_page(int(options["metricsPort"])))
    spark_ehbalance.stop(query)
    alone = {name: value for name, value in options.items() if name in ("connectionString", "startingPosition")}
    batch = spark.read.format("ehbalance").options(**alone).load()
    _explain(shown, f"{way} batch", batch.where(col("partition") == "0"))
    shown.keep(f"{way} batch rows", str(batch.count()))
    shown.printed(f"{way} batch mistakes", lambda: batch.select("nope"))
    connection = {"connectionString": options["connectionString"]}
    for rows in ("SELECT 'x' AS body", "SELECT 'x' AS nope", "SELECT repeat('x', 2000000) AS body"):
        writing = spark.sql(rows).write.format("ehbalance").options(**connection).mode("append")
        shown.printed(f"{way} write", writing.save)
    failing = spark.readStream.format("ehbalance").options(**alone).load().selectExpr("raise_error('on purpose') as x")
    writer = failing.writeStream.format("noop").option("checkpointLocation", str(folder / f"{way}-failing"))
    shown.printed(f"{way} failure", lambda: writer.start().awaitTermination(60))


def _look(spark: SparkSession, shown: Shown, folder: Path) -> None:
    """Save the UI, the command lines and the local files while everything runs."""
    base = str(spark.sparkContext.uiWebUrl)
    rest = [f"/api/v1/applications/{spark.sparkContext.applicationId}/{path}" for path in REST]
    queries = [f"/StreamingQuery/statistics/?id={query.runId}" for query in spark.streams.active]
    for page in (*PAGES, *queries, *rest):
        with urllib.request.urlopen(base + page, timeout=60) as answer:
            shown.keep(f"ui {page}", answer.read().decode())
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            shown.keep("command lines", process.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    shutil.copytree(folder / "local", folder / "local-then", dirs_exist_ok=True, ignore_dangling_symlinks=True)


def main() -> None:
    request = json.load(sys.stdin)
    folder = Path(request["folder"])
    shown = Shown(folder / "shown")
    (folder / "log4j2.properties").write_text(LOGGING.format(folder / "spark.log"))
    (folder / "events").mkdir()
    settings = SETTINGS | {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{folder}/events",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.maxPlanStringLength": "10000000",
        "spark.driver.extraJavaOptions": f"{QUICK_JAVA} -Dlog4j2.configurationFile={folder}/log4j2.properties",
    }
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark_ehbalance.register(spark)
    for way, options in request["ways"].items():
        _run(spark, shown, way, options, folder)
    spark.stop()


if __name__ == "__main__":
    main()
