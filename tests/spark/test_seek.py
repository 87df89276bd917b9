"""`ehbalance seek --force` while a query with real Spark has a batch in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.ops.command import Command, connection_arguments
from tests.spark.query_process import Query, QueryProcess
from tests.spark.test_single_query import fill
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.spark]

#: The partition that is sought. `fill` fills it first, so every batch contains its events.
SOUGHT = "0"


def expect(hub: Emulator, query: Query, skipped: Iterable[int] = ()) -> None:
    """Wait until the target contains every event once, except the skipped events of `SOUGHT`."""
    expected = Counter(fill(hub, 0)) - Counter((SOUGHT, number) for number in skipped)
    wait_until(lambda: len(query.rows()) >= expected.total(), f"{expected.total()} rows are written", timeout=60)
    assert Counter(query.rows()) == expected


def test_batch_in_flight_reaches_the_sink_and_reading_continues_at_the_new_position(
    hub: Emulator,
    shared_options: dict[str, str],
    tmp_path: Path,
    processes: Callable[[int], list[QueryProcess]],
    ehbalance: Command,
) -> None:
    """Seek forward, back (where `once` treats events before its mark as written), and before the query is killed in a
    batch and restarted under another name, as a pod is: `once` uses the running planner, not the one that planned the
    batch."""
    hold, checkpoint, table = tmp_path / "hold", tmp_path / "checkpoint", shared_options["leaseTable"]
    shared_options |= {"checkpointInterval": "1 minute"}  # must work even if checkpoints are late
    connection = connection_arguments(shared_options["connectionString"], tmp_path)

    def in_flight() -> bool:
        return len([*(checkpoint / "offsets").glob("[0-9]*")]) > len([*(checkpoint / "commits").glob("[0-9]*")])

    def begin_batch() -> None:
        hold.touch()
        wait_until(lambda: not in_flight(), "the last batch is finished")
        fill(hub, 10)
        wait_until(in_flight, "a batch is in flight")
        fill(hub, 20)

    def order(*command: object) -> None:
        done = ehbalance(*command, "--force", *connection)
        assert done.code == 0, done.err
        with DeltaStore(table) as store:
            ordered = store.read().version
            wait_until(lambda: store.read().version > ordered, "the query has renewed its leases")

    first, second = processes(2)
    query = first.start(shared_options | {"ownerId": "pod-1"}, tmp_path, hold=hold)
    fill(hub, 10)
    expect(hub, query)
    begin_batch()  # the batch ends at 20
    order("seek", table, SOUGHT, "--to", 35)
    hold.unlink()
    skipped = [*range(20, 35)]
    expect(hub, query, skipped)
    begin_batch()  # the batch is 40 to 50
    (tmp_path / "p.json").write_text(f'{{"{SOUGHT}": {{"next": 5}}}}')
    order("seek", table, "--positions", tmp_path / "p.json")
    hold.unlink()
    expect(hub, query, skipped)
    begin_batch()  # the batch is 70 to 80
    order("seek", table, SOUGHT, "--to", 95)
    first.kill()
    hold.unlink()
    restarted = second.start(shared_options | {"ownerId": "pod-2"}, tmp_path, hold=hold)
    skipped += range(80, 95)
    expect(hub, restarted, skipped)
    fill(hub, 10)
    expect(hub, restarted, skipped)
    with DeltaStore(table) as store:
        assert {lease.owner for lease in store.read().leases.values()} == {"pod-1"}, (
            "the owner stays with the checkpoint"
        )
    restarted.stop()
