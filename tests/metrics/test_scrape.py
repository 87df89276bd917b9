"""The real Prometheus scrapes a group that runs, and its alerts fire on real faults."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.metrics.prometheus import RULES, free_port, needed, running
from tests.metrics.test_alerts import expressions
from tests.query.queries import Group
from tests.waiting import wait_until


def hurried(rules: str) -> str:
    """The rules, whose alerts fire after seconds instead of minutes."""
    quick = re.sub(r"for: \d+m", "for: 300ms", rules)
    quick = quick.replace("> 600", "> 1").replace(
        "3 * max by (group) (ehbalance_lease", "1.5 * max by (group) (ehbalance_lease"
    )
    assert quick.count("300ms") == 8
    assert "> 600" not in quick
    return quick


@needed
def test_a_batch_that_hangs_and_an_owner_that_was_killed_fire_their_alerts_and_no_other(
    group: Group, tmp_path: Path
) -> None:
    ports = [free_port(), free_port()]
    group.append(5)
    member, _ = group.process("owner", metricsPort=ports[0])  # which holds its first batch forever
    command = [
        sys.executable,
        "-c",
        "from spark_ehbalance.ops import main; main()",
        "metrics",
        str(group.table),
        "--port",
        str(ports[1]),
    ]
    watcher = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        with running(tmp_path, hurried(RULES.read_text()), ports) as prometheus:
            wait_until(lambda: prometheus.value("sum(up)") == {"": 2}, "query and table are scraped")
            assert prometheus.value("sum by (member) (ehbalance_owned_partitions)") == {"member=owner": 16}
            assert prometheus.value('ehbalance_moves_total{reason="Claim"}') == {"member=owner,reason=Claim": 8}
            for each in expressions():
                prometheus.value(each)

            wait_until(lambda: prometheus.firing() == {"EhbalanceBatchHangs"}, "the batch is found to hang", 20)
            member.kill()
            wait_until(lambda: prometheus.firing() == {"EhbalanceLeaseNotRenewed"}, "the owner is found dead", 20)
    finally:
        watcher.kill()
        watcher.communicate()
