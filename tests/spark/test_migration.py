"""A Spark query in a group of the Azure SDK's consumers, and in their place: every event is processed exactly once.

`tests/processors` has members that run together.
"""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaos.storage.azurite import ACCOUNT, KEY, make_container
from spark_ehbalance.emulator import Emulator
from tests.azure_storage.consumers import Event, read_with_sdk
from tests.ops.command import Command, kept
from tests.spark.test_single_query import read_available

pytestmark = [pytest.mark.heavy, pytest.mark.spark]

HUB, PARTITIONS = "few", 4


def test_every_event_is_processed_once_in_a_container_and_by_a_query_that_takes_over(
    spark: SparkSession,
    hub: Emulator,
    shared_options: dict[str, str],
    storage: str,
    ehbalance: Command,
    tmp_path: Path,
) -> None:
    container, secret = uuid.uuid4().hex, tmp_path / "secret"
    make_container(storage, container)
    secret.write_text(KEY)
    hub.add_hub(HUB, PARTITIONS)
    connection = hub.connection_string(HUB)
    address, namespace = f"{storage}/{ACCOUNT}/{container}", f"localhost:{hub.port}"  # so the SDK's consumer names it
    in_delta = shared_options | {"connectionString": connection}
    in_blobs = in_delta | {
        "leaseTable": address,
        "storageSecrets.account_key": f"file:{secret}",
        "blobNamespace": namespace,
    }
    processed = Counter[Event]()

    def arrive(count: int) -> None:
        for partition in range(PARTITIONS):
            hub.append(HUB, partition, [b"event"] * count)

    arrive(30)
    processed.update(read_available(spark, in_blobs, tmp_path / "in blobs"))
    assert processed.total() == PARTITIONS * 30
    arrive(20)
    most = {"0": 20, "1": 1, "3": 4}
    # Without checkpoints it would skip events.
    processed.update(read_with_sdk(connection, HUB, storage, container, most, starting_position="@latest"))
    found = ehbalance("positions", address, "--storage-option", f"account_key=file:{secret}")
    assert found.code == 0, found.err
    (tmp_path / "p.json").write_text(found.out)
    given = (in_delta["leaseTable"], *kept(connection, tmp_path), "--positions", tmp_path / "p.json")
    ehbalance.succeeds("init", *given)
    arrive(5)
    processed.update(read_available(spark, in_delta, tmp_path / "in delta"))
    assert processed == Counter((str(p), number) for p in range(PARTITIONS) for number in range(55))
