"""Owner ids and the cores of a local Spark (`test_load_meter.py` tests CPU times)."""

from __future__ import annotations

import os

import pytest

from spark_ehbalance.query.options import stream_options
from spark_ehbalance.query.processes import local_cores, mint_owner_id


def test_owner_ids_are_unique_and_valid() -> None:
    ids = {mint_owner_id() for _ in range(100)}
    assert len(ids) == 100
    raw = {"fullyQualifiedNamespace": "h.example", "eventHubName": "hub", "leaseTable": "/tmp/t"}
    assert {stream_options(raw | {"ownerId": id_}).owner_id for id_ in ids} == ids


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[4]", 4),
        ("local[3, 2]", 3),
        ("local[*]", os.cpu_count()),
        ("local-cluster[2, 3, 1024]", 6),
        ("spark://host:7077", None),
        ("yarn", None),
        (None, None),
    ],
)
def test_local_master_gives_the_number_of_concurrent_tasks(master: str | None, cores: int | None) -> None:
    assert local_cores(master) == cores
