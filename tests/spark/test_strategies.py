"""Two queries share one hub under each of the strategies."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.strategies import STRATEGIES
from tests.spark.query_process import QueryProcess
from tests.spark.test_sharing import Owners, Traffic, shares, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

#: These take partitions without their owner's help, who may have begun to read the same events.
STEALING = {"balanced", "eph", "greedy"}

#: Short times, as the defaults would take minutes.
PARAMETERS = {
    "race": {"race.minimumGrab": "1 s", "race.delayPerLease": "100 ms"},
    "transfer": {"transfer.hitCount": "1", "transfer.coolDown": "2 s"},
}


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_query_joins_and_leaves(
    strategy: str,
    hub: Emulator,
    shared_options: dict[str, str],
    owners: Owners,
    processes: list[QueryProcess],
    tmp_path: Path,
) -> None:
    options = {**shared_options, "leaseDuration": "3 s", "strategy": strategy, **PARAMETERS.get(strategy, {})}
    traffic = Traffic(hub)
    a = processes[0].start(options, tmp_path / "a")
    wait_until(lambda: shares(owners) == [8], "one query has all")
    traffic.expect_once(a)

    b = processes[1].start(options, tmp_path / "b")
    wait_until(lambda: shares(owners) == [4, 4], "two queries share 4/4")
    if strategy in STEALING:
        sent = traffic.send()
        wait_until(lambda: sent <= {*a.rows(), *b.rows()}, "every event is read")
    else:
        traffic.expect_once(a, b)

    b.stop()
    sent = traffic.send()
    wait_until(lambda: sent <= set(a.rows()), "the stopped query's partitions are read by the other")
    assert shares(owners) == [8]
    a.stop()
