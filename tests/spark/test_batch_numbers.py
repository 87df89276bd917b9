"""Sinks that identify batches by number, after the checkpoint was deleted or rolled back."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import spark_ehbalance
from spark_ehbalance.emulator import Emulator
from tests.docs.blocks import blocks
from tests.spark.tables import events_in
from tests.spark.test_single_query import fill, run_available

pytestmark = [pytest.mark.heavy, pytest.mark.spark]


@pytest.mark.parametrize(
    ("sink", "is_rolled_back", "name"), [("parquet", False, "FileSink[file:"), ("delta", True, "DeltaSink[")]
)
def test_new_or_rolled_back_checkpoint_is_rejected(
    spark: SparkSession,
    hub: Emulator,
    options: dict[str, str],
    tmp_path: Path,
    sink: str,
    is_rolled_back: bool,
    name: str,
) -> None:
    """Without a lease table, the sink is the only evidence."""
    checkpoint, copy, output = (tmp_path / name for name in ("checkpoint", "copy", "output"))
    spark_ehbalance.register(spark)

    def run() -> None:
        events = spark.readStream.format("ehbalance").options(**options, maxEventsPerTrigger="8").load()
        writer = events.select("partition", "sequenceNumber").writeStream.format(sink).trigger(availableNow=True)
        assert writer.option("checkpointLocation", str(checkpoint)).start(str(output)).awaitTermination(120)

    fill(hub, 2)
    run()
    shutil.copytree(checkpoint, copy)
    before = fill(hub, 1)
    run()
    shutil.rmtree(checkpoint)
    ends = "has no batch yet"
    if is_rolled_back:
        shutil.copytree(copy, checkpoint)
        ends = f"ends with batch {max(int(file.name) for file in (copy / 'offsets').glob('[0-9]*'))}"
    fill(hub, 5)
    with pytest.raises(StreamingQueryException) as caught:
        run()
    assert f"DataLossError: [EHB_SINK_AHEAD] {name}" in str(caught.value)
    assert f"/checkpoint {ends}" in str(caught.value)
    found = spark.read.format(sink).load(str(output)).collect()
    assert sorted((row.partition, row.sequenceNumber) for row in found) == sorted(before), "nothing was read"


def test_sharing_queries_write_under_their_own_ids(
    spark: SparkSession, hub: Emulator, shared_options: dict[str, str], tmp_path: Path
) -> None:
    """Tests the function in the documentation. Under one id, Delta would skip a batch whose number the other query has
    already used; here, the queries take turns and use the same numbers."""
    (block,) = (block for block in blocks("docs/sharing.md") if "txnAppId" in block.text)
    table, names = str(tmp_path / "table"), dict[str, Any]()
    exec(block.text.replace("/data/flights", table), names)
    for name in "abab":
        sent = fill(hub, 2)
        run_available(spark, shared_options, tmp_path / name, process=names["write"])
    assert events_in(table) == Counter(sent)
    ids = [json.loads((tmp_path / name / "checkpoint" / "metadata").read_text())["id"] for name in "ab"]
    numbers = [DeltaTable(table).transaction_version(f"flights {id}") for id in ids]
    assert None not in numbers, "each has written"
