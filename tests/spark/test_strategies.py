"""Two queries share one hub under other strategies than the default; `tests/consumer/test_query_strategies.py` has
all."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.consumer.mixed import PARAMETERS, STEALING
from tests.spark.query_process import QueryProcess
from tests.spark.test_sharing import Owners, Traffic, shares, wait_until

pytestmark = pytest.mark.spark


# In the one partitions are taken by force, in the other by turns; `test_sharing.py` has the default, by handover.
@pytest.mark.parametrize("strategy", ["greedy", "race"])
def test_a_query_joins_and_leaves(
    strategy: str,
    hub: Emulator,
    shared_options: dict[str, str],
    owners: Owners,
    pair: list[QueryProcess],
    tmp_path: Path,
) -> None:
    options = {**shared_options, "leaseDuration": "3 s", "strategy": strategy, **PARAMETERS.get(strategy, {})}
    traffic = Traffic(hub)
    a = pair[0].start(options, tmp_path / "a")
    wait_until(lambda: shares(owners) == [8], "one query has all")
    traffic.expect_once(a)

    b = pair[1].start(options, tmp_path / "b")
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
