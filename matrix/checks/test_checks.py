"""What must work with every version of Spark. The first line of a check is its line in the matrix."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import spark_ehbalance
from matrix.checks.conftest import HUB, PARTITIONS, Hub, Row, Sink, Start
from matrix.checks.session import DELTA, SPARK, TELLS
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.stores.delta import DeltaStore
from tests.waiting import wait_until

Note = Callable[[str, object], None]


@pytest.fixture(params=["alone", "sharing"])
def options(request: pytest.FixtureRequest) -> dict[str, str]:
    """Those of a query without a lease table, and with one."""
    found: dict[str, str] = request.getfixturevalue(request.param)
    return found


def reads(query: StreamingQuery, sink: Sink, rows: list[Row]) -> None:
    """Wait until the query has read these rows, each once."""
    wait_until(lambda: len(sink.rows) >= len(rows) or query.exception(), "all is read", 60)
    assert query.exception() is None
    assert sink.rows == rows


def ends(query: StreamingQuery) -> None:
    assert query.awaitTermination(120), "the query ends"


def test_batch_read(spark: SparkSession, hub: Hub, alone: dict[str, str]) -> None:
    """batch read"""
    sent = hub.send(5)
    rows = spark.read.format("ehbalance").options(**alone).load().select("partition", "sequenceNumber").collect()
    assert sorted(map(tuple, rows)) == sent


def test_write(spark: SparkSession, hub: Hub, alone: dict[str, str], tmp_path: Path) -> None:
    """write, batch and stream"""
    connection = {"connectionString": hub.connection_string}
    ddl = "body binary, partitionKey string, properties map<string,string>"
    sent = [(b"%d" % number, None if number % 3 else "key", {"n": str(number)}) for number in range(30)]
    rows = spark.createDataFrame(sent, ddl)
    rows.write.format("ehbalance").options(**connection).mode("append").save()
    rows.selectExpr("cast(body as string) as value", "partitionKey as key").write.format("parquet").save(
        f"{tmp_path}/f"
    )
    stream = spark.readStream.schema("value string, key string").parquet(f"{tmp_path}/f").writeStream
    query = (
        stream.format("ehbalance")
        .options(**connection, kafkaColumns="true")
        .option("checkpointLocation", str(tmp_path / "writing"))
        .trigger(availableNow=True)
        .start()
    )
    ends(query)
    found = (
        spark.read.format("ehbalance").options(**alone).load().select("body", "partitionKey", "properties").collect()
    )
    again = [(bytes(row.body), row.partitionKey, row.properties) for row in found]
    expected = sent + [(body, key, {}) for body, key, _ in sent]
    assert sorted(again, key=str) == sorted(expected, key=str)


def test_stream(hub: Hub, options: dict[str, str], start: Start) -> None:
    """stream"""
    sink = Sink()
    query = start(options, sink)
    for _ in range(3):
        reads(query, sink, hub.send(4))
    assert all(rows for batch, rows in sink.batches.items() if batch), "no empty batch"


def test_limit(hub: Hub, options: dict[str, str], start: Start) -> None:
    """maxEventsPerTrigger"""
    sink = Sink()
    reads(start({**options, "maxEventsPerTrigger": "10"}, sink), sink, hub.send(10))
    assert [len(rows) for rows in sink.batches.values() if rows] == [10] * 4


def test_restart(hub: Hub, options: dict[str, str], start: Start) -> None:
    """restart"""
    sink = Sink()
    query = start(options, sink)
    reads(query, sink, hub.send(4))
    for _ in range(2):
        spark_ehbalance.stop(query)
        before = dict(sink.batches)
        query = start(options, sink)
        wait_until(lambda: _said(query) or query.exception(), "it has looked for news")  # noqa: B023
        assert sink.batches == before, "no empty batch"
        reads(query, sink, hub.send(3))


def _said(query: StreamingQuery) -> bool:
    """Whether the query has found that there is nothing to read: then its planner runs."""
    return query.status["message"] in ("Waiting for data to arrive", "Waiting for next trigger")


def test_a_batch_fails(hub: Hub, options: dict[str, str], start: Start) -> None:
    """replay of a batch that failed"""
    sink, limited = Sink(), {**options, "maxEventsPerTrigger": "10"}
    for sink.fails in (0, 2):  # of the first batch Spark logs no start
        hub.send(10)
        with pytest.raises(StreamingQueryException, match="the sink fails"):
            start(limited, sink).awaitTermination(120)
    reads(start(limited, sink := _without_failure(sink)), sink, hub.sent)


def _without_failure(sink: Sink) -> Sink:
    sink.fails = None
    return sink


class Crashed(NamedTuple):
    """A query whose driver was killed in its second batch: the rows of both batches, and what it had."""

    batches: dict[int, list[Row]]
    options: dict[str, str]
    checkpoint: str
    hub: Hub
    target: str


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Crashed]]:
    """Queries of one driver, which is killed when all are in their second batch: alone, with a lease table, and with a
    lease table into Delta, if there is one."""
    with Emulator({HUB: PARTITIONS}) as emulator:
        hub = Hub(emulator)
        hub.send(6)
        queries = {}
        for name in ["alone", "sharing", *(["delta"] if DELTA else [])]:
            folder = tmp_path_factory.mktemp(name)
            options = {"connectionString": hub.connection_string, "startingPosition": "earliest"}
            options |= {"maxEventsPerTrigger": "10"}
            if name != "alone":
                options |= {"leaseTable": str(folder / "leases"), "balanceInterval": "1 s", "leaseDuration": "6 s"}
            target = str(folder / "target") if name == "delta" else ""
            queries[name] = {"folder": str(folder), "options": options, "target": target}
        command = [sys.executable, "-m", "matrix.checks.killed", json.dumps(list(queries.values()))]
        driver = subprocess.Popen(command, start_new_session=True)  # so that it leads the group of all its processes
        files = {name: [Path(each["folder"]) / f"batch {n}.json" for n in (0, 1)] for name, each in queries.items()}
        try:
            written = [written for _, written in files.values()]
            wait_until(
                lambda: all(map(Path.exists, written)) or driver.poll() is not None,
                "all are in their second batch",
                timeout=400,
            )
            assert driver.poll() is None, "a query of it has failed"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        yield {
            name: Crashed(
                {
                    n: sorted((p, number) for p, number in json.loads(file.read_text()))
                    for n, file in enumerate(files[name])
                },
                each["options"],
                f"{each['folder']}/checkpoint",
                hub,
                each["target"],
            )
            for name, each in queries.items()
        }


@pytest.mark.parametrize("way", ["alone", "sharing"])
def test_crash(crashed: dict[str, Crashed], way: str, start: Start) -> None:
    """SIGKILL in a batch, and replay"""
    before, sink = crashed[way], Sink()
    query = start(before.options, sink, before.checkpoint)
    sent = list(before.hub.send(2))
    wait_until(lambda: len(sink.rows) >= len(sent) - 10 or query.exception(), "the rest is read")
    assert query.exception() is None
    assert min(sink.batches) == 1, "the first batch is finished"
    assert sink.batches[1] == before.batches[1], "the same is read again"
    assert sorted(before.batches[0] + sink.rows) == sent


def test_available_now(hub: Hub, options: dict[str, str], start: Start, record_property: Note) -> None:
    """Trigger.AvailableNow"""
    sink = Sink()
    for each in (4, 0, 3):
        sent = hub.send(each)
        ends(start(options, sink, availableNow=True))
        assert sink.rows == sent
    hub.send(10)
    ends(start({**options, "maxEventsPerTrigger": "10"}, sink, availableNow=True))
    assert len(sink.rows) == (len(hub.sent) if TELLS else len(hub.sent) - 30)
    if not TELLS:
        record_property("note", "one batch")


def test_available_now_in_turns(hub: Hub, sharing: dict[str, str], start: Start) -> None:
    """Trigger.AvailableNow, two queries in turns"""
    sinks = Sink(), Sink()
    for turn in range(4):
        sent = hub.send(3)
        ends(start(sharing, sinks[turn % 2], f"checkpoint {turn % 2}", availableNow=True))
        assert sorted(sinks[0].rows + sinks[1].rows) == sent


def test_available_now_wrapped(spark: SparkSession, hub: Hub, alone: dict[str, str], start: Start) -> None:
    """Trigger.AvailableNow, wrapped by Spark"""
    if TELLS:
        pytest.skip("Spark does not wrap the source")
    sink = Sink()
    setting = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
    spark.conf.set(setting, "true")
    try:
        ends(start(alone, sink, availableNow=True))
        hub.send(3)
        with pytest.raises(StreamingQueryException, match="triggerAvailableNowWrapper"):
            start(alone, sink, availableNow=True).awaitTermination(120)
        assert sink.rows == [], "it has not begun anew"
    finally:
        spark.conf.unset(setting)
    pytest.skip("not supported: refused; leave the setting unset")


def test_sharing(hub: Hub, sharing: dict[str, str], start: Start) -> None:
    """two queries sharing, one leaves"""
    a, b = Sink(), Sink()
    store = DeltaStore(sharing["leaseTable"])

    def owners(number: int) -> bool:
        return len({lease.owner for lease in store.read().leases.values()} - {None}) == number

    first = start(sharing, a, "a")
    reads(first, a, hub.send(3))
    second = start(sharing, b, "b")
    wait_until(lambda: owners(2) or second.exception(), "they share")

    def both_read() -> None:
        sent = hub.send(2)
        wait_until(lambda: len(a.rows + b.rows) >= len(sent) or first.exception() or second.exception(), "all is read")
        assert sorted(a.rows + b.rows) == sent, "every event once"

    for _ in range(3):
        both_read()
    assert b.rows
    sent = hub.send(2)
    spark_ehbalance.stop(first)
    wait_until(lambda: len(a.rows + b.rows) >= len(sent) or second.exception(), "the other reads all")
    both_read()
    assert owners(1)


def test_delta(spark: SparkSession, crashed: dict[str, Crashed], start: Start, record_property: Note) -> None:
    """exactly once into Delta, with SIGKILL"""
    if DELTA is None:
        pytest.skip("not supported: no Delta for this Spark; write with one up to 4.2")
    from spark_ehbalance.delta import once
    from spark_ehbalance.delta.support import support

    before = crashed["delta"]
    query = start(before.options, once(before.target), before.checkpoint)  # both batches are in the target
    sent = list(before.hub.send(2))

    def held() -> list[Row]:
        rows = spark.read.format("delta").load(before.target).select("partition", "sequenceNumber").collect()
        return sorted((row.partition, row.sequenceNumber) for row in rows)

    wait_until(lambda: len(held()) >= len(sent) or query.exception(), "all is written")
    assert query.exception() is None
    assert held() == sent
    record_property("note", f"Delta {DELTA.version}, {support(spark.range(1)).value}")


def test_merge(spark: SparkSession, hub: Hub, alone: dict[str, str], tmp_path: Path) -> None:
    """merge into Delta"""
    if DELTA is None:
        pytest.skip("not supported: no Delta for this Spark; merge with one up to 4.2")
    sent, target = hub.send(3), str(tmp_path / "merged")
    frame = spark.read.format("ehbalance").options(**alone).load()
    for _ in range(2):
        spark_ehbalance.merge(frame, target)
    rows = spark.read.format("delta").load(target).select("partition", "sequenceNumber").collect()
    assert sorted(map(tuple, rows)) == sent


def test_wrong_option(spark: SparkSession, alone: dict[str, str]) -> None:
    """a wrong option is one clear line"""
    with pytest.raises(PySparkException) as raised:
        spark.readStream.format("ehbalance").options(**alone, strategy="best").load()
    assert "option strategy='best' is wrong" in str(raised.value)


FAILING_IMPORT = """
from matrix.checks.session import make_session
try:
    make_session().readStream.format("ehbalance").load()
except Exception as error:
    print(error)
"""


def test_failing_import(tmp_path: Path) -> None:
    """an import that fails in Spark's Python says why"""
    (tmp_path / "deltalake.py").write_text("raise ImportError('it is for another machine')")
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    command = [sys.executable, "-c", FAILING_IMPORT]
    done = subprocess.run(command, env=os.environ | path, capture_output=True, text=True, timeout=120, check=False)
    assert "the source ehbalance cannot start in" in done.stdout, done.stderr
    assert "ImportError: it is for another machine. Install spark-ehbalance there" in done.stdout


def test_the_version(record_property: Note) -> None:
    """pip has left pyspark as it was"""
    expected: Any = os.environ.get("EHBALANCE_MATRIX_SPARK")
    assert expected in (None, SPARK)
    record_property("note", SPARK)
