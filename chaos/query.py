"""One Spark application in its own process: `python -m chaos.query SETTINGS`, with `SETTINGS` as JSON.

It reads commands as JSON lines from standard input, and writes events as JSON lines to standard output. It restarts a
failed query from its checkpoint, as a job scheduler does. The sink appends: it writes one Parquet file per batch and
renames it into place, so a batch is either completely visible or not visible. A batch that runs again creates another
file, so no duplicate is hidden. Before that, `write_once` writes the batch to the Delta table `target`, and the sink
writes it to the hub `copy`. The frame is not persisted, so that `write_once` reads from the hub within its transaction,
as it does when it is the only sink, and can lose a lease at that point.

| command | effect |
|---|---|
| `{"do": "start", "owner": …}` | starts a query with the owner id `owner`, which is also the name of its checkpoint |
| `{"do": "stop"}` | `spark_ehbalance.stop(query)` |
| `{"do": "cancel"}` | `query.stop()`, which interrupts the running batch |
| `{"do": "halt", "step": …}` | the next batch waits once, before this step of `write_once`, or after it is `written` |
| `{"do": "go"}` | the batch continues, or the `halt` is cancelled |
| end of input | the process ends |
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_ehbalance
from chaos.session import DELTA, FAST_START, spark_session
from spark_ehbalance.exactly_once import write_once, writing
from spark_ehbalance.exactly_once.protocol import Commit, Step
from spark_ehbalance.exactly_once.target import Target
from spark_ehbalance.exactly_once.writing import SourceBatch, carry_out
from spark_ehbalance.spark_versions import UNIX_SOCKET

#: Seconds before a failed query is restarted.
_RESTART_AFTER = 1.0

#: Seconds after which a batch that waits for a fault continues without one.
_HALT_TIMEOUT = 60.0


@dataclass(frozen=True)
class Settings:
    """The settings of a query process.

    `trigger` is a processing-time interval; if it is "", each batch starts as soon as the last one ends. `target` is a
    Delta table, or "". `copy` is the connection string of a hub to which the batches are written too, or "". `columns`
    are the columns that the query reads, or "" for all. `unix_socket` determines whether Spark and its Python workers
    communicate over a Unix socket.
    """

    folder: str
    options: Mapping[str, str]
    trigger: str = ""
    target: str = ""
    copy: str = ""
    columns: str = ""
    unix_socket: bool = True

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Halt:
    """Makes a batch wait at a step of its sink, so that a fault can be injected there."""

    def __init__(self) -> None:
        self._step = ""
        self._go = threading.Event()

    def order(self, step: str) -> None:
        self._go.clear()
        self._step = step

    def go(self) -> None:
        self._step = ""
        self._go.set()

    def reached(self, step: str) -> None:
        """Wait here if the batch was ordered to halt at `step`."""
        if self._step == step:
            self._step = ""
            report("halted", step=step)
            self._go.wait(_HALT_TIMEOUT)


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    halt = Halt()
    vars(writing)["carry_out"] = partial(_run_step_with_halt, halt)  # `write_once` does not report its steps
    commands: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=listen, args=(commands,), daemon=True).start()
    spark = session(settings)
    spark_ehbalance.register(spark)
    report("ready")
    query, owner, run = None, "", ""
    while True:
        try:
            command = commands.get(timeout=0.1)
        except queue.Empty:
            if query is not None and not query.isActive:
                report("failed", owner=owner, run=run, why=failure_reason(query))
                query = None
                time.sleep(_RESTART_AFTER)
                query, run = _start(spark, settings, owner, halt)
            continue
        match command["do"]:
            case "start":
                owner = command["owner"]
                query, run = _start(spark, settings, owner, halt)
            case "stop" | "cancel" if query is not None:
                report("stopping", owner=owner, run=run)
                spark_ehbalance.stop(query) if command["do"] == "stop" else query.stop()
                query = None
                report("stopped", owner=owner, run=run)
            case "halt":
                halt.order(command["step"])
            case "go":
                halt.go()
            case "end":
                break
    if query is not None:
        query.stop()
    spark.stop()


def report(event: str, **details: Any) -> None:
    print(json.dumps({"at": time.time(), "event": event, **details}), flush=True)


def listen(commands: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    commands.put({"do": "end"})


def session(settings: Settings) -> SparkSession:
    temporary = Path(settings.folder) / "tmp"
    temporary.mkdir(exist_ok=True)
    more = {
        "spark.driver.memory": "512m",
        "spark.local.dir": str(temporary),
        "spark.sql.shuffle.partitions": "2",
        **(DELTA if settings.target else {}),
        UNIX_SOCKET: str(settings.unix_socket).lower(),
    }
    # A task runs again if its worker is killed, as on a cluster.
    return spark_session("local[2, 4]", temporary, more, f"{FAST_START} -XX:-UsePerfData")


def _start(spark: SparkSession, settings: Settings, owner: str, halt: Halt) -> tuple[StreamingQuery, str]:
    run = uuid.uuid4().hex[:12]
    checkpoint = Path(settings.folder) / "checkpoints" / owner
    append = _append(Path(settings.folder) / "rows", checkpoint, owner, run)

    def write(frame: DataFrame, batch: int) -> None:
        began = time.time()
        events = frame.selectExpr("partition", "sequenceNumber", "cast(body as string) as body", "partitionKey")
        if settings.target:
            write_once(events, batch, settings.target)
        if settings.copy:
            rows = events.selectExpr("cast(body as binary) as body", "partitionKey")
            rows.write.format("ehbalance").option("connectionString", settings.copy).mode("append").save()
        append(events, batch, began)
        halt.reached("written")

    reader = spark.readStream.format("ehbalance").options(**{**settings.options, "ownerId": owner})
    writer = (
        (reader.schema(settings.columns) if settings.columns else reader)
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(checkpoint))
    )
    if settings.trigger:
        writer = writer.trigger(processingTime=settings.trigger)
    report("starting", owner=owner, run=run)
    return writer.start(), run


def _append(rows: Path, checkpoint: Path, owner: str, run: str) -> Callable[[DataFrame, int, float], None]:
    """A function that appends a batch: the events, their planned epochs, and the times at which the batch began and was
    written."""

    def write(events: DataFrame, batch: int, began: float) -> None:
        table = events.toArrow()
        if not table.num_rows:
            return
        epochs = _epochs(checkpoint / "offsets" / str(batch))
        owned = pa.array([epochs[partition] for partition in table["partition"].to_pylist()], pa.int64())
        about = {"owner": owner, "run": run, "batch": str(batch), "began": repr(began)}
        table = table.append_column("epoch", owned).replace_schema_metadata(about)
        draft = rows / f".{uuid.uuid4().hex}"
        pq.write_table(table, draft)
        # The name contains the time of the rename, which is when the batch counts as written.
        os.rename(draft, rows / f"{time.time():.6f}-{draft.name[1:]}.parquet")

    return write


def _run_step_with_halt(halt: Halt, step: Step, df: DataFrame, batch: SourceBatch, target: Target) -> Any:
    """Call `carry_out`, but first halt if this step was ordered to, and report the result of a commit."""
    halt.reached(type(step).__name__)
    answer = carry_out(step, df, batch, target)
    if isinstance(step, Commit):
        report("committed" if answer is None else "refused", why=answer and answer.conflict.value)
    return answer


def _epochs(offset: Path) -> dict[str, int]:
    """The epoch of each partition in a batch that Spark has logged. If a batch runs again, its actual epochs are
    higher."""
    end = json.loads(offset.read_text().splitlines()[2])
    return {partition: range_["epoch"] for partition, range_ in end["partitions"].items()}


def failure_reason(query: StreamingQuery) -> str:
    lines = [line for line in str(query.exception()).splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\w(Error|Exception)\b", line)]
    reason = errors[-1] if errors else lines[0] if lines else "it has ended"
    return re.sub(r" \[id = [^]]*\]", "", reason).strip()[:400]


if __name__ == "__main__":
    main()
