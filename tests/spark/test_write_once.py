"""`write_once`: real transactions on real Delta tables, with interference between the steps."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr, lit

from spark_ehbalance import merge
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import EhBalanceError, TargetError
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.receiver import PartitionAddress, Receiver
from spark_ehbalance.exactly_once import once, write_once
from spark_ehbalance.exactly_once.marks import SequenceRange, SequenceRanges, TransactionCache
from spark_ehbalance.exactly_once.merging import insert, merge_once
from spark_ehbalance.exactly_once.protocol import Begin, Commit, Conflict, Step, Write, WriteResult, write_exactly_once
from spark_ehbalance.exactly_once.selection import SEQUENCE_NUMBER
from spark_ehbalance.exactly_once.support import has_transactions
from spark_ehbalance.exactly_once.target import MERGED_IDENTIFIER, EventOffsets, MergedError, Target
from spark_ehbalance.exactly_once.writing import carry_out
from spark_ehbalance.group.changes import Join, Leave, Release, Steal
from spark_ehbalance.group.model import Author
from spark_ehbalance.lease_table.contract import commit
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.raising import raises
from tests.spark.conftest import HUB
from tests.spark.merge_race import race
from tests.spark.tables import events_in
from tests.spark.test_single_query import fill, run_available, run_frame

pytestmark = pytest.mark.spark

Events = Counter[tuple[str, int]]


@pytest.fixture
def target(tmp_path: Path) -> str:
    """The path of a table that does not exist yet."""
    return str(tmp_path / "target")


def several_sources(names: str) -> AbstractContextManager[object]:
    return raises(TargetError, "EHB_TARGET_UNSUPPORTED", reason=re.compile(f"sources are {re.escape(names)}"))


def event_rows(spark: SparkSession, start: int, end: int, *, partition: str = "0", body: str = "x") -> DataFrame:
    text = f"'{partition}' AS partition, id AS sequenceNumber, '{body}' AS body"
    return spark.sql(f"SELECT {text} FROM range({start}, {end})")


def events_in_named_table(spark: SparkSession, target: str) -> Events:
    rows = spark.table(target).select("partition", "sequenceNumber").collect()
    return Counter((row.partition, row.sequenceNumber) for row in rows)


def events_of(read: SequenceRanges) -> Events:
    return Counter(
        (partition, number) for partition, range_ in read.items() for number in range(range_.start, range_.end)
    )


class Writer:
    """Writes one range of events to a target, step by step, without a query."""

    def __init__(
        self,
        spark: SparkSession,
        target: str,
        read: SequenceRanges,
        *,
        columns: str = "",
        source: str = "namespace/hub",
        events: EventOffsets | None = None,
        **options: str,
    ) -> None:
        rows = "SELECT '{}' AS partition, id AS sequenceNumber, concat('event ', id) AS body{} FROM range({}, {}, 1, 1)"
        self._df = spark.sql(" UNION ALL ".join(rows.format(p, columns, e.start, e.end) for p, e in read.items()))
        self.target = Target(self._df, target, source, options, events=events)
        self._steps = write_exactly_once(read)
        self._next: Step | None = next(self._steps)
        self.read = read
        self.result: WriteResult | None = None

    def lost(self) -> frozenset[str]:
        return frozenset()

    def through(self, kind: type[Step]) -> Writer:
        """Carry out steps up to and including the next one of this kind."""
        while self._next is not None:
            reached = isinstance(self._next, kind)
            self._step()
            if reached:
                break
        return self

    def finish(self) -> WriteResult:
        while self.result is None:
            self._step()
        return self.result

    def _step(self) -> None:
        assert self._next is not None
        try:
            self._next = self._steps.send(carry_out(self._next, self._df, self, self.target))
        except StopIteration as end:
            self._next, self.result = None, end.value


def run(spark: SparkSession, target: str, read: SequenceRanges, **options: Any) -> WriteResult:
    return Writer(spark, target, read, **options).finish()


# --- the transaction -------------------------------------------------------------------------------------------


def test_overlapping_writers_write_every_event_once(spark: SparkSession, target: str) -> None:
    """Both writers commit first once; the second time, the marks are known and not read from Delta.
    `tests/exactly_once/test_protocol.py` covers all orders of their steps."""
    assert has_transactions(spark.range(1)), "the tested version of Delta is written in the cheapest way"
    expected = events_of({"9": SequenceRange(0, 1)})
    run(spark, target, {"9": SequenceRange(0, 1)})
    known: TransactionCache | None = None
    for number, order in enumerate(("abAB", "baBA")):
        start = 10 * number
        a = {"0": SequenceRange(start, start + 10), "1": SequenceRange(start, start + 2)}
        b = {"0": SequenceRange(start, start + 4)}
        writers = {name: Writer(spark, target, read) for name, read in (("a", a), ("b", b))}
        for writer in writers.values():
            writer.target.cache = known
        for act in order:
            if writers[act.lower()].result is None:
                writers[act.lower()].through(Begin if act.islower() else Commit)
        for writer in writers.values():
            writer.finish()
        expected += events_of(a)
        assert events_in(target) == expected, order
        known = writers["a"].target.cache
    assert run(spark, target, {"0": SequenceRange(0, 20), "1": SequenceRange(0, 2)}).written == {}


def test_concurrent_changes_by_others(spark: SparkSession, target: str) -> None:
    table = f"delta.`{target}`"
    run(spark, target, {"0": SequenceRange(0, 5)})

    def change_rows() -> None:
        spark.sql(f"INSERT INTO {table} VALUES ('other', 1, 'x')")
        spark.sql(f"OPTIMIZE {table}")
        spark.sql(f"DELETE FROM {table} WHERE partition = 'other'")

    acts: Sequence[Callable[[], object]] = [
        change_rows,
        lambda: spark.sql(f"ALTER TABLE {table} ADD COLUMN more string"),
        lambda: run(spark, target, {"1": SequenceRange(0, 5)}, columns=", id AS number", mergeSchema="true"),
    ]
    for number, act in enumerate(acts, 1):
        writer = Writer(spark, target, {"0": SequenceRange(0, 5 + number)}).through(Begin)
        act()
        assert writer.finish().written == {"0": SequenceRange(4 + number, 5 + number)}
    assert events_in(target) == events_of({"0": SequenceRange(0, 8), "1": SequenceRange(0, 5)})
    assert "number" in spark.read.format("delta").load(target).columns


FEATURED = """
    CREATE TABLE featured (partition string, sequenceNumber long, body string, number long GENERATED ALWAYS AS IDENTITY,
        more string DEFAULT 'd', bucket long GENERATED ALWAYS AS (sequenceNumber % 2))
    USING delta PARTITIONED BY (bucket)
    TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true',
        'delta.enableChangeDataFeed' = 'true', 'delta.enableRowTracking' = 'true', 'delta.appendOnly' = 'true',
        'delta.setTransactionRetentionDuration' = 'interval 90 days', 'delta.enableInCommitTimestamps' = 'true',
        'delta.checkpointPolicy' = 'v2', 'delta.feature.allowColumnDefaults' = 'supported')
"""


def test_table_with_named_features(spark: SparkSession) -> None:
    spark.sql("DROP TABLE IF EXISTS featured")
    spark.sql(FEATURED)
    spark.sql("ALTER TABLE featured ADD CONSTRAINT early CHECK (sequenceNumber < 100)")
    read = {"0": SequenceRange(0, 4), "1": SequenceRange(2, 5)}
    late = Writer(spark, "default.featured", read).through(Begin)
    run(spark, "featured", read)
    assert late.finish().written == {}
    assert events_in_named_table(spark, "featured") == events_of(read)
    with pytest.raises(Exception, match=r"(?i)early"):
        run(spark, "featured", {"0": SequenceRange(4, 101)})
    assert events_in_named_table(spark, "featured") == events_of(read)
    merge_once(event_rows(spark, 3, 6), "featured", None, {})
    assert events_in_named_table(spark, "featured") == events_of({"0": SequenceRange(0, 6), "1": SequenceRange(2, 5)})


# --- rejected targets ------------------------------------------------------------------------------------------


def test_table_that_is_not_a_delta_table_is_rejected(spark: SparkSession) -> None:
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW seen AS SELECT 1 AS a")
    spark.sql("CREATE TABLE IF NOT EXISTS plain (a int) USING parquet")
    rows = event_rows(spark, 0, 1)
    for name in ("seen", "plain"):
        with raises(TargetError, "EHB_TARGET_UNSUPPORTED", target=name):
            run(spark, name, {"0": SequenceRange(0, 1)})
        with raises(TargetError, "EHB_TARGET_UNSUPPORTED", target=name):
            merge(rows, name)


def test_table_whose_marks_delta_would_forget_is_rejected(spark: SparkSession, target: str) -> None:
    run(spark, target, {"0": SequenceRange(0, 1)})
    name = "delta.setTransactionRetentionDuration"
    spark.sql(f"ALTER TABLE delta.`{target}` SET TBLPROPERTIES ('{name}' = 'interval 30 days')")
    reason = re.compile(f"{name} is interval 30 days")
    with raises(TargetError, "EHB_TARGET_UNSUPPORTED", target=target, reason=reason):
        run(spark, target, {"0": SequenceRange(1, 2)})


def test_table_written_by_deltas_own_sink_is_rejected(spark: SparkSession, target: str) -> None:
    rows = event_rows(spark, 0, 1)
    rows.write.format("delta").options(txnAppId="the query", txnVersion=1).save(target)
    table = Target(rows, target, "namespace/hub", {})
    table.check_own_sink("the query", 2)
    table.check_own_sink("another", 0)
    for batch in (0, 1):
        with raises(TargetError, "EHB_TARGET_BATCH_EXISTS", target=target, batch=1):
            table.check_own_sink("the query", batch)


@dataclass
class Offsets:
    """The offsets of events: `last` has those of the partitions' last events, `at` the offset of any other event."""

    last: dict[str, str]
    at: str = ""

    def find_offset(self, partition: str, sequence_number: int) -> str | None:
        return self.at


def test_mark_moved_without_its_event_is_not_mistaken_for_a_promotion(spark: SparkSession, target: str) -> None:
    read = {"0": SequenceRange(0, 10)}
    run(spark, target, {"0": SequenceRange(0, 5)}, events=Offsets({"0": "a"}))
    with raises(TargetError, "EHB_TARGET_AHEAD", partition="0", known=4):
        run(spark, target, read, events=Offsets({"0": "c"}, at="b"))
    run(spark, target, {"0": SequenceRange(5, 8)})
    run(spark, target, read, events=Offsets({"0": "c"}, at="b"))
    assert events_in(target) == events_of(read)


# --- the session's settings ------------------------------------------------------------------------------------


def test_settings_that_make_delta_skip_writes_are_rejected(spark: SparkSession, target: str) -> None:
    session = spark.newSession()
    rows = event_rows(session, 0, 10)
    session.conf.set("spark.databricks.delta.write.txnAppId", "nightly")
    session.conf.set("spark.databricks.delta.write.txnVersion", "7")
    for write in (
        lambda: merge(rows, target),
        lambda: insert(rows, target, "namespace/hub", None),
        lambda: write_once(rows, 0, target),
    ):
        with raises(TargetError, "EHB_SESSION_SKIPS_WRITES", setting="spark.databricks.delta.write.txnAppId"):
            write()
    session.conf.unset("spark.databricks.delta.write.txnAppId")
    with raises(TargetError, "EHB_SESSION_SKIPS_WRITES", setting="spark.databricks.delta.write.txnVersion"):
        merge(rows, target)
    assert not events_in(target)


# --- MERGE -----------------------------------------------------------------------------------------------------


def test_after_a_merge_all_writers_must_merge(spark: SparkSession, target: str) -> None:
    run(spark, target, {"0": SequenceRange(0, 5)})
    spark.sql(f"DELETE FROM delta.`{target}` WHERE sequenceNumber = 4")
    assert run(spark, target, {"0": SequenceRange(0, 5)}).written == {}, "what lies behind the mark counts as written"
    rows = event_rows(spark, 3, 8).withColumn("new", lit(1))
    merge(rows.limit(0), target)  # adds no rows and changes nothing for other writers
    writer = Writer(spark, target, {"0": SequenceRange(3, 8)}).through(Begin)
    merge_once(rows.union(rows), target, "namespace/hub", {"mergeSchema": "true"})
    assert events_in(target) == events_of({"0": SequenceRange(0, 4)}) + Counter({("0", n): 2 for n in range(4, 8)})
    assert "new" in spark.read.format("delta").load(target).columns
    with several_sources("another hub and namespace/hub"):
        merge_once(rows, target, "another hub", {})
    with pytest.raises(MergedError):
        writer.finish()
    with pytest.raises(MergedError):
        run(spark, target, {"0": SequenceRange(8, 9)})


def test_merge_reads_only_files_that_can_contain_its_events(spark: SparkSession, target: str) -> None:
    run(spark, target, {"0": SequenceRange(0, 5)})
    hidden = [path.rename(path.with_suffix(".hidden")) for path in Path(target).glob("*.parquet")]
    run(spark, target, {"0": SequenceRange(5, 8)})
    merge(event_rows(spark, 6, 10, body="added"), target, update=False)  # reading a hidden file would fail
    merge(event_rows(spark, 7, 9, body="replaced"), target)
    for path in hidden:
        path.rename(path.with_suffix(".parquet"))
    table = spark.read.format("delta").load(target).orderBy("sequenceNumber")
    bodies = [row.body for row in table.select("body").collect()]
    assert bodies == [*(f"event {number}" for number in range(7)), "replaced", "replaced", "added"]
    rows = event_rows(spark, 0, 2)
    unnumbered = rows.selectExpr("partition", "nullif(sequenceNumber, 1) AS sequenceNumber")
    for refused, numbers in ((rows.union(rows), "only 2 distinct sequence"), (unnumbered, "only 1 distinct sequence")):
        with raises(TargetError, "EHB_TARGET_ROWS_INVALID", problem=re.compile(f"Partition 0: .* rows have {numbers}")):
            merge(refused, target)


def test_merged_table_accepts_events_of_one_source_only(spark: SparkSession, target: str) -> None:
    """MERGE would mistake the second source's events for the first source's events."""
    for source in ("namespace/hub", "namespace/other"):
        run(spark, target, {"0": SequenceRange(0, 5)}, source=source)
    with several_sources("namespace/hub and namespace/other"):
        merge(event_rows(spark, 3, 4), target)


#: Column type → a value that an append accepts. `tests/exactly_once/test_schemas.py` covers rejected values.
TAKEN = {
    "date": "NULL",
    "varchar(5)": "'abc'",
    "char(5)": "'abc'",
    "string NOT NULL": "concat('x', id)",
    "struct<a:int,b:string>": "named_struct('a', 7)",
    "struct<b:string,a:int>": "named_struct('A', 1, 'B', 'x')",
    "struct<a:int,b:struct<c:string,d:date>>": "named_struct('b', named_struct('c', NULL, 'd', DATE'2020-01-02'))",
    "array<struct<a:int,b:string>>": "array(named_struct('a', 1), NULL)",
    "array<array<struct<a:int,b:int>>>": "array(array(named_struct('b', 1)))",
    "map<string,struct<a:int,b:string>>": "map('k', named_struct('b', 'x'))",
    "map<struct<a:int,b:string>,int>": "map(named_struct('a', 1), 2)",
    "bigint GENERATED ALWAYS AS (sequenceNumber % 2)": "",
    "string DEFAULT 'd'": "",
}
#: A value with a field that is missing from the table's `array<struct<a:int,b:string>>`.
EVOLVED = "array(named_struct('c', 1, 'a', 2))"
FOR_DEFAULTS = "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"


def test_merge_writes_the_same_rows_as_an_append(spark: SparkSession, tmp_path: Path) -> None:
    """Missing fields are null, even in arrays and maps; columns and fields are matched by name in any case and order;
    new ones are added where an append with schema evolution adds them. The source is known from the second MERGE on."""
    columns = ", ".join(f"c{number} {type_}" for number, type_ in enumerate(TAKEN))
    values = [f"{value} AS C{number}" for number, value in enumerate(TAKEN.values()) if value]
    rows = spark.sql(f"SELECT {', '.join(reversed(values))}, id AS sequenceNumber, '0' AS partition FROM range(3)")
    appended, merged = str(tmp_path / "appended"), str(tmp_path / "merged")
    for target in (appended, merged):
        spark.sql(
            f"CREATE TABLE delta.`{target}` (partition string, sequenceNumber bigint, {columns}) USING delta "
            + FOR_DEFAULTS
        )
    rows.write.format("delta").mode("append").save(appended)
    with raises(TargetError, "EHB_TARGET_SCHEMA_MISMATCH", column="c0", problem=re.compile("double .* date")):
        merge(rows.withColumn("c0", lit(21.75)), merged)
    assert DeltaTable(merged).version() == 0, "nothing was written"
    merge(rows, merged)
    array = f"c{list(TAKEN).index('array<struct<a:int,b:string>>')}"
    new = rows.limit(1).withColumns({SEQUENCE_NUMBER: lit(9).cast("long"), "new": lit("x"), array: expr(EVOLVED)})
    new.write.format("delta").mode("append").option("mergeSchema", True).save(appended)
    merge_once(new, merged, "it's a \\token", {"mergeSchema": "true"})
    with several_sources("another and it's a"):
        merge_once(new, merged, "another", {"mergeSchema": "true"})
    tables = [spark.read.format("delta").load(target).orderBy(SEQUENCE_NUMBER) for target in (appended, merged)]
    assert tables[0].collect() == tables[1].collect()
    assert tables[0].schema.simpleString() == tables[1].schema.simpleString()


def test_replaced_merged_table_still_requires_merge(spark: SparkSession) -> None:
    spark.sql("DROP TABLE IF EXISTS replaced")
    spark.sql(
        "CREATE TABLE replaced (partition string NOT NULL, sequenceNumber bigint, body string, "
        "more string, number bigint GENERATED ALWAYS AS IDENTITY, "
        "half bigint GENERATED ALWAYS AS (sequenceNumber DIV 2)) USING delta"
    )
    rows = event_rows(spark, 0, 5)
    merge_once(rows, "replaced", "namespace/hub", {})
    spark.sql("CREATE OR REPLACE TABLE replaced USING delta AS SELECT * FROM replaced")
    assert "ehbalance.writeOnce" not in spark.sql("DESCRIBE DETAIL replaced").collect()[0].properties
    with pytest.raises(MergedError):
        run(spark, "replaced", {"0": SequenceRange(0, 6)})
    with several_sources("another hub and namespace/hub"):  # another source, whose events have the same numbers
        merge_once(rows, "replaced", "another hub", {})
    merge_once(rows, "replaced", "namespace/hub", {})
    assert events_in_named_table(spark, "replaced") == events_of({"0": SequenceRange(0, 5)})
    assert spark.sql("DESCRIBE DETAIL replaced").collect()[0].properties["ehbalance.writeOnce"] == "namespace/hub"


def test_transaction_is_rejected_after_a_concurrent_merge_by_its_identifier(spark: SparkSession, target: str) -> None:
    run(spark, target, {"0": SequenceRange(0, 5)})
    writer = Writer(spark, target, {"0": SequenceRange(5, 8)}).through(Write)
    empty = event_rows(spark, 0, 0).write.format("delta").mode("append")
    empty.options(txnAppId=MERGED_IDENTIFIER, txnVersion=1).save(target)
    with pytest.raises(MergedError):
        writer.finish()


def test_merge_does_not_update_an_event_that_is_in_the_table_twice(spark: SparkSession, target: str) -> None:
    twice = spark.sql("SELECT '2' AS partition, id % 5 + 3 AS sequenceNumber, concat('b', id) AS body FROM range(9)")
    once_there = event_rows(spark, 0, 9, partition="10")
    twice.union(once_there).union(once_there.limit(1)).write.format("delta").save(target)
    before = spark.read.format("delta").load(target).orderBy("partition", SEQUENCE_NUMBER, "body").collect()
    rows = event_rows(spark, 4, 10, partition="2", body="y")
    problem = re.compile("partition 2, sequence number 4 2 times")
    with raises(TargetError, "EHB_TARGET_ROWS_INVALID", problem=problem):
        merge(rows.union(once_there), target)
    assert DeltaTable(target).version() == 0, "nothing was written"
    merge(rows.union(once_there), target, update=False)
    after = spark.read.format("delta").load(target).orderBy("partition", SEQUENCE_NUMBER, "body")
    assert after.where("body <> 'y'").collect() == before


def test_one_of_two_concurrent_merges_is_rejected(spark: SparkSession, target: str, tmp_path: Path) -> None:
    run(spark, target, {"0": SequenceRange(0, 5)})
    assert race(spark, f"delta.`{target}`", 5, tmp_path) is Conflict.TABLE
    assert events_in(target) == events_of({"0": SequenceRange(0, 10)})


def test_concurrent_merges_can_create_the_table(
    spark: SparkSession, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On object storage, and with the Python processes of one Spark Connect server, the lock has no effect."""
    monkeypatch.setattr("spark_ehbalance.exactly_once.merging.commit_lock", lambda *_: contextlib.nullcontext())
    together = threading.Barrier(2)

    def begin(number: int) -> None:
        rows = event_rows(spark, 0, 1, partition=str(number))
        together.wait(60)
        merge(rows, target)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(begin, range(2)))
    assert events_in(target) == Counter([("0", 0), ("1", 0)])


# --- queries ---------------------------------------------------------------------------------------------------


def test_query_writes_every_event_once_despite_a_crash_and_a_stolen_partition(
    spark: SparkSession, hub: Emulator, shared_options: dict[str, str], target: str, tmp_path: Path
) -> None:
    """The stolen partition's mark must not be the planned end, or its remaining events would never be written."""
    batches, stolen = list[int](), list[Receiver]()
    write = once(target)

    def process(df: DataFrame, batch_id: int) -> None:
        batches.append(batch_id)
        if batch_id == 1 and not stolen:
            stolen.append(steal(hub, shared_options["leaseTable"], "0"))
        write(df.filter("sequenceNumber % 10 > 0").selectExpr("*", "1 AS added"), batch_id)
        with raises(TargetError, "EHB_TARGET_BATCH_EXISTS", batch=batch_id):  # or its rows would be lost
            write(df.selectExpr("*", "2 AS added"), batch_id)
        if batches == [0]:
            raise RuntimeError("a crash before the checkpoint")

    sent = fill(hub, 20)
    options = {**shared_options, "maxEventsPerTrigger": "80"}
    with pytest.raises(StreamingQueryException, match="a crash"):
        run_available(spark, options, tmp_path, process=process)
    assert events_in(target).total() == 8 * 9
    run_available(spark, options, tmp_path, process=process)
    assert batches[:3] == [0, 0, 1], "the first one was run again"
    expected = Counter(event for event in sent if event[1] % 10)
    assert events_in(target) == Counter(event for event in expected if event[0] != "0" or event[1] < 10)
    stolen[0].close()
    give_back(shared_options["leaseTable"], "0")
    run_available(spark, options, tmp_path, process=process)
    assert events_in(target) == expected


def test_stateful_query_survives_a_crash_and_a_lost_partition(
    spark: SparkSession, hub: Emulator, shared_options: dict[str, str], target: str, tmp_path: Path
) -> None:
    """The state includes events of a lost partition that are not written, so the batch fails and is rerun from the
    previous state. A batch that only emits state needs no planner, and a restarted query does not have one then."""
    stolen, write, crashed = list[Receiver](), once(target), False

    def process(df: DataFrame, batch_id: int) -> None:
        nonlocal crashed
        if not crashed and df.count() == 0:
            crashed = True
            raise RuntimeError("a crash in a batch of the state alone")
        if batch_id > 1 and not stolen:
            stolen.append(steal(hub, shared_options["leaseTable"], "0"))
        write(df, batch_id)

    def run_once() -> None:
        events = spark.readStream.format("ehbalance").options(**shared_options).load()
        first = events.withWatermark("enqueuedTime", "0 seconds").dropDuplicatesWithinWatermark(
            ["partition", SEQUENCE_NUMBER]
        )
        run_frame(first, tmp_path, process=process)

    fill(hub, 10)
    with pytest.raises(StreamingQueryException, match="a crash"):
        run_once()
    sent = fill(hub, 20)
    with pytest.raises(StreamingQueryException, match=r"\[EHB_TARGET_STATE_AHEAD\] .* partitions 0 "):
        run_once()
    assert events_in(target).total() == 8 * 10
    stolen[0].close()
    give_back(shared_options["leaseTable"], "0")
    run_once()
    assert events_in(target) == Counter(sent)


def test_events_from_a_recreated_hub_are_an_error(
    spark: SparkSession, hub: Emulator, options: dict[str, str], target: str, tmp_path: Path
) -> None:
    fill(hub, 5)
    run_available(spark, options, tmp_path, process=once(target))
    # Tables of earlier versions contain these identifiers. With other ones, events would be written again.
    table, source = DeltaTable(target), f"localhost:{hub.port}/{HUB}"
    assert [table.transaction_version(f"ehb/{source}/{partition}") for partition in range(8)] == [5] * 8
    assert table.transaction_version(f"ehb-created/{source}")
    hub.delete_hub(HUB)
    hub.add_hub(HUB, 8)
    fill(hub, 8)  # beyond the marks
    with pytest.raises(StreamingQueryException, match=r"\[EHB_TARGET_HUB_RECREATED\] .*/hub\."):
        run_available(spark, options, tmp_path / "again", process=once(target))
    assert events_in(target).total() == 8 * 5


def test_marks_of_an_earlier_query_are_forgotten(
    spark: SparkSession, hub: Emulator, options: dict[str, str], target: str, tmp_path: Path
) -> None:
    """After the target has been restored, other commits can bring it to the version at which the marks were known."""

    def write(folder: str) -> set[tuple[str, int]]:
        sent = fill(hub, 2)
        run_available(spark, options, tmp_path / folder, process=once(target))
        return sent

    write("before")
    shutil.copytree(target, tmp_path / "copy")
    write("before")
    shutil.rmtree(target)
    shutil.copytree(tmp_path / "copy", target)
    for number in range(2):
        other = event_rows(spark, number, number + 1, partition="other").drop("body")
        other.write.format("delta").mode("append").save(target)
    assert DeltaTable(target).version() == 2
    sent = write("after")
    assert events_in(target) == Counter([*sent, ("other", 0), ("other", 1)])


def test_marks_are_not_shared_between_tables_of_the_same_name(
    spark: SparkSession, hub: Emulator, options: dict[str, str], tmp_path: Path
) -> None:
    """Two sessions with different current databases; one table started as a copy of the other's folder."""
    sessions = {name: spark.newSession() for name in ("one", "two")}
    for name, session in sessions.items():
        session.sql(f"CREATE DATABASE {name} LOCATION '{tmp_path / name}'")
        session.sql(f"USE {name}")

    def write(name: str) -> None:
        run_available(sessions[name], options, tmp_path / f"query {name}", process=once("flights"))

    fill(hub, 1)
    write("one")
    shutil.copytree(tmp_path / "one/flights", tmp_path / "two/flights")
    sessions["two"].sql(f"CREATE TABLE flights USING delta LOCATION '{tmp_path / 'two/flights'}'")
    sent = fill(hub, 1)
    write("one")
    sessions["two"].sql("ALTER TABLE flights SET TBLPROPERTIES ('a' = 'b')")  # the other table's version
    write("two")
    assert events_in(tmp_path / "one/flights") == events_in(tmp_path / "two/flights") == Counter(sent)


def test_self_union_is_written_with_a_version_2_offset_log(
    spark: SparkSession, hub: Emulator, options: dict[str, str], target: str, tmp_path: Path
) -> None:
    session, sent = spark.newSession(), fill(hub, 4)
    session.conf.set("spark.sql.streaming.offsetLog.formatVersion", 2)
    events = session.readStream.format("ehbalance").options(**options, maxEventsPerTrigger="16").load()
    run_frame(events.union(events), tmp_path, process=once(target))
    assert events_in(target) == Counter(dict.fromkeys(sent, 2))


def test_query_warns_about_events_written_by_another_query(
    spark: SparkSession, hub: Emulator, options: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The query's other target receives those events."""
    first, second, sent = str(tmp_path / "first"), str(tmp_path / "second"), fill(hub, 10)
    run_available(spark, options, tmp_path / "one", process=lambda df, batch_id: write_once(df, batch_id, first))
    assert "the target already contains" not in caplog.text

    def process(df: DataFrame, batch_id: int) -> None:
        once(first)(df, batch_id)
        once(second)(df, batch_id)

    run_available(spark, options | {"maxEventsPerTrigger": "40"}, tmp_path / "two", process=process)
    assert events_in(first) == events_in(second) == Counter(sent)
    assert "the target already contains events of the batch" in caplog.text
    assert "`source`. batch=1 " in caplog.text
    assert "`source`. batch=0 " not in caplog.text, "it may be one that is run again"


THIEF = Author("thief", "1")


def steal(hub: Emulator, lease_table: str, partition: str) -> Receiver:
    """Steal a partition in the lease table, and disconnect its reader with a receiver that has the new epoch."""
    with DeltaStore(lease_table) as store:
        before = store.read()
        # A long lease duration, because it never renews and must keep the partition until `give_back`.
        join = Join(by=THIEF, at_ms=0, host="", max_owned=None, strategy="cooperative", lease_duration_ms=600_000)
        epoch = before.leases[partition].epoch
        outcome = commit(store, before, [join, Steal(by=THIEF, at_ms=0, partition=partition, epoch=epoch)])
    assert not outcome.rejected
    connection = Connection("localhost", HUB, connection_string=hub.connection_string(HUB))
    level = outcome.after.leases[partition].epoch
    receiver = Receiver(PartitionAddress(connection, "$Default", partition), 0, owner_level=level, prefetch=1)
    receiver.receive(1, 5.0)
    return receiver


def give_back(lease_table: str, partition: str) -> None:
    with DeltaStore(lease_table) as store:
        before = store.read()
        epoch = before.leases[partition].epoch
        leave = [Release(by=THIEF, at_ms=0, partition=partition, epoch=epoch), Leave(by=THIEF, at_ms=0)]
        assert not commit(store, before, leave).rejected


def test_only_batches_from_one_hub_with_both_columns_are_written(
    spark: SparkSession, hub: Emulator, options: dict[str, str], target: str, tmp_path: Path
) -> None:
    fill(hub, 3)
    errors = list[str]()

    def refused(df: DataFrame, batch_id: int) -> None:
        with pytest.raises((EhBalanceError, Py4JJavaError)) as refusal:
            write_once(df, batch_id, target)
        errors.append(str(refusal.value))

    def process(df: DataFrame, batch_id: int) -> None:
        if errors:
            return
        refused(df.drop("sequenceNumber"), batch_id)
        refused(df.withColumn("partition", df.partition.cast("int")), batch_id)
        refused(df, batch_id + 7)
        refused(df.withColumn("sequenceNumber", df.sequenceNumber + 2), batch_id)

    run_available(spark, options, tmp_path, process=process)
    expected = ("sequenceNumber", "partition", "has no batch 7", "EHB_TARGET_ROWS_INVALID")
    for error, what in zip(errors, expected, strict=True):
        assert what in error
    with raises(TargetError, "EHB_TARGET_CALL_INVALID", problem=re.compile("outside foreachBatch")):
        write_once(event_rows(spark, 1, 2), 0, target)
    for wrong in (lambda: write_once(spark.range(1), 0, "delta.`/a`"), lambda: once("delta.`/a`")):
        with raises(TargetError, "EHB_TARGET_CALL_INVALID", allowed="a path, or a name in the catalog"):
            wrong()
    with raises(TargetError, "EHB_TARGET_CALL_INVALID", problem=re.compile("no option overwriteSchema")):
        once("/a", overwriteSchema=True)
    for option, allowed in (({"mergeSchema": "yes"}, "true or false"), ({"maxRecordsPerFile": 1.5}, "a whole number")):
        with raises(TargetError, "EHB_TARGET_CALL_INVALID", allowed=allowed):
            once("/a", **option)
    with raises(TargetError, "EHB_TARGET_CALL_INVALID", problem="source is empty"):
        once("/a", source="")
    one, two = (spark.readStream.format("ehbalance").options(**options).load() for _ in range(2))
    with pytest.raises(StreamingQueryException, match=r"\[EHB_TARGET_CALL_INVALID\] .* has 2 ehbalance sources"):
        run_frame(one.union(two), tmp_path / "two", process=once(target))
    assert not list(Path(target).glob("_delta_log/*.json")), "nothing was committed"
