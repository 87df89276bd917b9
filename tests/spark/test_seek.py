"""`ehbalance seek --force` and `import-checkpoints --force` while a query with real Spark has a batch in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.stores.delta import DeltaStore
from tests.cli.command import kept
from tests.source.scala_folders import scala_folder
from tests.spark.conftest import HUB
from tests.spark.query_process import Query, QueryProcess
from tests.spark.test_sharing import ehbalance
from tests.spark.test_single_query import fill
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

#: The partition that is sought: the one that `fill` fills first, so that every batch has its events.
SOUGHT = "0"

Order = Callable[[int], None]


@pytest.fixture
def order(request: pytest.FixtureRequest, shared_options: dict[str, str], tmp_path: Path) -> Order:
    """Has reading of the partition go on elsewhere, and waits until the query, which runs, has learnt of it."""
    given = kept(shared_options["connectionString"], tmp_path)

    def give(to: int) -> None:
        if request.param == "seek":
            ehbalance("seek", shared_options, SOUGHT, "--to", str(to), "--force", *given)
        else:
            folder = scala_folder(tmp_path / f"old-{to}", {HUB: {int(SOUGHT): to}})
            flags = ("--force", "--allow-back")
            ehbalance("import-checkpoints", shared_options, "--from-spark", str(folder), *flags, *given)
        with DeltaStore(shared_options["leaseTable"]) as store:
            ordered = store.read().version
            wait_until(lambda: store.read().version > ordered, "the query has renewed its leases")

    return give


def in_flight(checkpoint: Path) -> bool:
    """Whether a batch is logged and not finished."""
    return len([*(checkpoint / "offsets").glob("[0-9]*")]) > len([*(checkpoint / "commits").glob("[0-9]*")])


def expect(hub: Emulator, query: Query, skipped: Iterable[int] = (), again: Iterable[int] = ()) -> None:
    """Wait until every event is in the target once, but for those of `SOUGHT` that were skipped or are read again."""
    ends = {str(p): hub.partition_state(HUB, p).next_sequence_number for p in range(8)}
    expected = Counter((p, number) for p, end in ends.items() for number in range(end))
    expected -= Counter((SOUGHT, number) for number in skipped)
    expected += Counter((SOUGHT, number) for number in again)
    wait_until(lambda: len(query.rows()) >= expected.total(), f"{expected.total()} rows are written", timeout=60)
    assert Counter(query.rows()) == expected


@pytest.mark.parametrize(
    ("order", "numbered"), [("seek", False), ("import", False), ("seek", True)], indirect=["order"]
)
def test_the_batch_in_flight_reaches_the_sink_and_reading_goes_on_at_the_new_place(
    hub: Emulator,
    shared_options: dict[str, str],
    tmp_path: Path,
    pair: list[QueryProcess],
    order: Order,
    numbered: bool,
) -> None:
    """Forward, back, and when the query is killed in the batch and started again: with `once`, and with a sink that
    knows batches by their numbers, which writes again what is read again."""
    hold, checkpoint = tmp_path / "hold", tmp_path / "checkpoint"
    query = pair[0].start(shared_options, tmp_path, hold=hold, numbered=numbered)
    fill(hub, 10)
    expect(hub, query)

    def begin() -> None:
        hold.touch()
        wait_until(lambda: not in_flight(checkpoint), "the last batch is finished")
        fill(hub, 10)
        wait_until(lambda: in_flight(checkpoint), "a batch is in flight")
        fill(hub, 20)

    begin()  # up to 20
    order(35)
    hold.unlink()
    expect(hub, query, skipped=range(20, 35))
    begin()  # from 40 up to 50
    order(5)
    hold.unlink()
    # For `once` what lies behind its mark counts as written.
    skipped, again = ([], [*range(5, 20), *range(35, 50)]) if numbered else ([*range(20, 35)], [])
    expect(hub, query, skipped, again)
    begin()  # from 70 up to 80
    order(95)
    pair[0].kill()
    hold.unlink()
    restarted = pair[1].start(shared_options, tmp_path, hold=hold, numbered=numbered)
    skipped += range(80, 95)
    expect(hub, restarted, skipped, again)
    fill(hub, 10)
    expect(hub, restarted, skipped, again)
    restarted.stop()
