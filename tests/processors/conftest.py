from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.storage.azurite import ACCOUNT, make_container
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.fixtures import emulator
from spark_ehbalance.source.assembly import start_planner
from spark_ehbalance.source.offsets import StreamOffset, group_name
from spark_ehbalance.source.options import Options, stream_options
from tests.azure_storage.conftest import all_requests, proxy, storage
from tests.processors.group import PARTITIONS, MixedGroup
from tests.source.queries import Query
from tests.waiting import wait_until

__all__ = ["all_requests", "emulator", "proxy", "storage"]


@pytest.fixture
def group(emulator: Emulator, storage: str, tmp_path: Path) -> Iterator[MixedGroup]:
    """A hub with 12 partitions, and a container for the group's blobs."""
    emulator.add_hub("hub", PARTITIONS)
    container = uuid.uuid4().hex
    make_container(storage, container)
    made = MixedGroup(emulator, f"{storage}/{ACCOUNT}", container, tmp_path)
    yield made
    made.close()


@pytest.fixture
def options(group: MixedGroup) -> Options:
    return stream_options(group.options | {"balanceInterval": "0.3s", "strategy": "greedy"})


Start = Callable[..., Query]


@pytest.fixture
def start(options: Options) -> Iterator[Start]:
    """Starts a query, and waits until it owns so many partitions."""
    queries: list[Query] = []

    def begin(finished: StreamOffset | None = None, *, owned: int = 0, **changed: Any) -> Query:
        own = replace(options, **changed)
        finished = finished or StreamOffset("a", group=group_name(own.lease_table))
        query = Query(start_planner(own, "a", finished), "a", finished)
        queries.append(query)
        wait_until(lambda: len(query.owned()) >= owned, f"the query owns {owned} partitions")
        return query

    yield begin
    for query in queries:
        query.stop()
