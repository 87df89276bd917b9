"""Spark queries in separate processes, like on separate clusters.

Starting Spark takes longer than most tests, so tests reuse a process: it reads commands as JSON lines and writes one
line in answer. `python -m tests.spark.query_process` is the process, `QueryProcess` its handle.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from tests.spark.settings import INTERPRETED
from tests.spark.tables import events_in

#: The answer about a query that has not ended.
RUNS = "it runs"


class QueryProcess:
    """A process with a Spark session that runs queries from `ehbalance` into Delta tables."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.query_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        )

    @property
    def pid(self) -> int:
        """The driver's process id, which is also its session id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def start(self, options: dict[str, str], folder: Path, *, table: Path | None = None) -> Query:
        """Start a query whose checkpoint and table (unless `table` is given) are in `folder`."""
        target = table or folder / "table"
        self._request({"do": "start", "options": options, "folder": str(folder), "table": str(target)})
        return Query(self, folder, target)

    def error(self, folder: Path, within: float = 60) -> str:
        """The error with which the query ends within `within` seconds; `RUNS` if it does not end."""
        return str(self._request({"do": "error", "folder": str(folder), "within": within})["text"])

    def stop(self, folder: Path) -> None:
        self._request({"do": "stop", "folder": str(folder)})

    def terminate(self) -> None:
        """Send SIGTERM to the driver, as a cluster manager does."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the driver, the JVM, the planner and the workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _request(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                if "error" in answer:
                    raise AssertionError(answer["error"])
                return answer
        raise AssertionError("the query process has ended")


class Query:
    """A running query, and what it has written."""

    def __init__(self, process: QueryProcess, folder: Path, table: Path) -> None:
        self._process = process
        self._folder = folder
        self._table = table

    def stop(self) -> None:
        self._process.stop(self._folder)

    def rows(self) -> list[tuple[str, int]]:
        """(partition, sequence number) of every row written so far, including duplicates."""
        return list(events_in(self._table).elements())


def _main() -> None:
    from pyspark.sql import SparkSession

    settings = INTERPRETED | {"spark.driver.memory": "1g"}
    spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    queries: dict[str, Any] = {}
    for line in sys.stdin:
        command = json.loads(line)
        folder = command["folder"]
        try:
            if command["do"] == "start":
                writer = (
                    spark.readStream.format("ehbalance")
                    .options(**command["options"])
                    .load()
                    .writeStream.option("checkpointLocation", f"{folder}/checkpoint")
                )
                # Without a trigger, the queries would make batches all the time and leave the test no CPU time.
                writer = writer.trigger(processingTime="1 second")
                queries[folder] = writer.format("delta").start(command["table"])
            elif command["do"] == "error":
                try:
                    ended = queries[folder].awaitTermination(command["within"])
                    error = "none" if ended else RUNS
                except StreamingQueryException as failure:
                    error = str(failure)
                print(json.dumps({"text": error}), flush=True)
                continue
            else:
                queries.pop(folder).stop()
            answer = {"done": command["do"]}
        except Exception as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    _main()
