"""Members whose storage throttles all of them."""

from __future__ import annotations

from chaos.storage.faults import BUSY, Rule
from chaos.storage.proxy import StorageProxy
from tests.azure_storage.tables import Table
from tests.member.keepers import Keepers
from tests.waiting import wait_until


def test_members_keep_what_they_hold_while_the_storage_throttles(new_table: Table, proxy: StorageProxy) -> None:
    group = Keepers(new_table.opened, partitions=4, lease_duration=9.0)
    try:
        ann, bob = group.start("ann"), group.start("bob")
        wait_until(lambda: len(ann.holdings()) == len(bob.holdings()) == 2, "both know that they have two")
        layout, counters = group.layout(), group.counters()
        come = proxy.counts().total()
        proxy.disturb(Rule(BUSY))
        wait_until(lambda: proxy.counts().total() > come + 15, "both have tried several times")
        assert [len(ann.holdings()), len(bob.holdings())] == [2, 2]
        proxy.disturb()
        wait_until(
            lambda: all(now > counters[partition] for partition, now in group.counters().items()),
            "all leases are renewed",
        )
        assert group.layout() == layout
    finally:
        group.close()
