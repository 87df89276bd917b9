"""The number of requests for reads and commits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.storage.faults import RequestKind
from chaos.storage.proxy import StorageProxy
from spark_ehbalance.group.changes import Heartbeat
from tests.azure_storage.tables import RENEWAL, Table
from tests.lease_table.delta_tables import change
from tests.lease_table.store_conformance import BOB, committed

#: Every tenth read checks that the log still exists.
TIMES, CHECKS = 20, 2

Cost = Callable[[Callable[[], object]], dict[RequestKind, int]]


@pytest.fixture
def cost(proxy: StorageProxy) -> Cost:
    """Counts the requests of an action."""

    def counted(done: Callable[[], object]) -> dict[RequestKind, int]:
        with proxy.count_requests() as requests:
            done()
        print({kind.value: count for kind, count in requests.items()})
        return dict(requests)

    return counted


def test_requests_of_reads_and_commits(table: Table, cost: Cost) -> None:
    with table.opened() as mine, table.undisturbed() as theirs:
        mine.read()

        def read_and_commit() -> None:
            for _ in range(TIMES):
                committed(mine, RENEWAL)

        def read_news() -> dict[RequestKind, int]:
            committed(theirs, Heartbeat(by=BOB, at_ms=1))
            return cost(mine.read)

        idle = cost(lambda: [mine.read() for _ in range(TIMES)])
        assert idle == {RequestKind.GET: TIMES, RequestKind.HEAD: CHECKS}, "1 for an idle look"
        both = cost(read_and_commit)
        assert both == {
            RequestKind.GET: TIMES,
            RequestKind.HEAD: CHECKS,
            RequestKind.PUT: TIMES,
            RequestKind.CONDITIONAL_PUT: TIMES,
        }, "2 more"
        news = [read_news() for _ in range(TIMES)]
        assert [new[RequestKind.GET] for new in news] == [3] * TIMES, "2 more for a look with news"
        assert sum(sum(new.values()) for new in news) == 3 * TIMES + CHECKS


def test_requests_of_a_lost_race(table: Table, cost: Cost) -> None:
    with table.opened() as mine, table.undisturbed() as theirs:
        stale = mine.read()
        committed(theirs, Heartbeat(by=BOB, at_ms=1))
        lost = cost(lambda: committed(mine, RENEWAL, base=stale))
        again = {RequestKind.GET: 3, RequestKind.PUT: 2, RequestKind.CONDITIONAL_PUT: 2}
        assert lost == again, "the winner's log file and data, whether there is more, and the commit once more"


def test_requests_of_a_stale_member(table: Table, cost: Cost) -> None:
    with table.opened() as mine, table.undisturbed() as theirs:
        mine.read()
        for _ in range(50):
            committed(theirs, Heartbeat(by=BOB, at_ms=1))
        assert sum(cost(mine.read).values()) <= 8
        assert mine.read() == theirs.read()


def test_requests_of_the_history(table: Table, cost: Cost) -> None:
    """A handle reads the log once and then only appended entries; a new handle reads at most a checkpoint."""
    with table.opened() as mine, table.undisturbed() as theirs:
        costs = [sum(cost(lambda number=number: mine.record([change(number)])).values()) for number in range(45)]
        assert max(costs[2:18]) <= 9
        assert sum(costs) / len(costs) < 15, "with two checkpoints"
        theirs.record([change(45)])
        assert sum(cost(lambda: mine.record([change(46)])).values()) <= 14
        with table.opened() as other:
            assert sum(cost(lambda: other.record([change(47)])).values()) <= 60
        assert [change.at_ms for change in theirs.history()] == list(range(48))
