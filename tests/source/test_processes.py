"""Owner ids. CPU times are tested with the load meter, Spark's master with locations."""

from __future__ import annotations

from spark_ehbalance.source.options import stream_options
from spark_ehbalance.source.processes import mint_owner_id


def test_owner_ids_are_unique_and_valid() -> None:
    ids = {mint_owner_id() for _ in range(100)}
    assert len(ids) == 100
    key = "SharedAccessKeyName=n;SharedAccessKey=k"
    for each in ids:
        raw = {"connectionString": f"Endpoint=sb://h/;{key};EntityPath=hub", "leaseTable": "/tmp/t", "ownerId": each}
        assert stream_options(raw).owner_id == each
