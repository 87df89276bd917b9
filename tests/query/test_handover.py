"""Without Spark's listener, a handover waits until the driver reports the end of the batch."""

from __future__ import annotations

import pytest

from tests.query.queries import Group
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("folder", "without_network")


def pending_handovers(group: Group) -> set[str]:
    return {partition for partition, lease in group.leases().items() if lease.handover is not None}


def test_handover_completes_when_the_driver_reports_the_end_of_the_batch(group: Group) -> None:
    group.raw |= {"leaseDuration": "10s", "handoverTimeout": "60s"}
    group.append(10)
    a = group.query("a")
    group.wait_owned(8)
    end = a.batch()
    a.run(end)
    b = group.query("b")
    wait_until(lambda: len(pending_handovers(group)) == 4, "four are to be handed over")
    renewed = group.snapshot().members["a"].renewal
    wait_until(lambda: group.snapshot().members["a"].renewal > renewed, "a has looked at the table again")
    assert not b.owned(), "a does not know that its batch has ended"

    assert a.notify(end) is True
    wait_until(lambda: len(b.owned()) == 4, "they are handed over")
    assert set(group.checkpoints().values()) == {10}
    assert b.plan() is None
    assert a.plan() is None, "Spark's own call, minutes later, changes nothing"
