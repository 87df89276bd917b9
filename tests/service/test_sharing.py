"""Two queries that share the hub, and the command that checks the connection."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

from azure.eventhub import EventData

from tests.query.queries import Event, Query
from tests.reading_query import ReadingQuery
from tests.service.hub import Hub
from tests.waiting import wait_until


def reading(hub: Hub, owner: str, table: str) -> ReadingQuery:
    times = {"balanceInterval": "2s", "receiverTimeout": "60s"}
    return ReadingQuery(hub.options(leaseTable=table, startingPosition="latest", **times), owner)


def test_two_queries_share_and_every_event_is_read_once(hub: Hub, table: str) -> None:
    sent: list[Event] = []

    def send(count: int) -> None:
        for partition in hub.states():
            sent.extend((partition, n) for n in hub.send(partition, [EventData("x") for _ in range(count)]))

    def read_all() -> bool:
        for query in queries:
            query.step()
        return sum(len(query.seen) for query in queries) >= len(sent)

    queries: list[Query] = [reading(hub, "a", table)]
    gone: list[Query] = []
    try:
        partitions = hub.states().keys()
        wait_until(lambda: queries[0].owned() == partitions, "the first owns all")
        send(3)
        wait_until(read_all, "all is read")
        queries.append(reading(hub, "b", table))
        wait_until(lambda: read_all() and len(queries[1].owned()) == len(partitions) // 2, "the second has its share")
        send(3)
        wait_until(read_all, "all is read")
        assert queries[1].seen
        gone.append(queries.pop(0))
        assert gone[0].notify(), "as the driver does when its query is stopped"
        gone[0].stop()
        wait_until(lambda: queries[0].owned() == partitions, "the second has all")
        send(2)
        wait_until(lambda: read_all() or len(gone[0].seen) + len(queries[0].seen) >= len(sent), "all is read")
        assert Counter(gone[0].seen + queries[0].seen) == Counter(sent)
    finally:
        for query in queries + gone:
            query.stop()


def test_init_creates_a_lease_table(hub: Hub, table: str) -> None:
    command = [sys.executable, "-c", "from spark_ehbalance.ops import main; main()", "init", table]
    names = {"consumerGroup": "--consumer-group", "eventHubName": "--event-hub-name", "credential": "--credential"}
    names["fullyQualifiedNamespace"] = "--fully-qualified-namespace"
    command += [part for option, flag in names.items() if option in hub.raw for part in (flag, hub.raw[option])]
    secret = {"EHBALANCE_CONNECTION_STRING": hub.raw["connectionString"]} if "connectionString" in hub.raw else {}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **secret})
    assert done.stderr == ""
    assert f"Lease table {table} of " in done.stdout
    assert done.returncode == 0
