"""Prometheus can read the pages of a running query and of `ehbalance metrics`."""

from __future__ import annotations

import contextlib
import subprocess
import sys

from tests.metrics.prometheus import free_port, needs_promtool, promtool, scrape_page
from tests.query.queries import Group
from tests.waiting import wait_until


@needs_promtool
def test_pages_of_a_query_and_a_lease_table_are_valid(group: Group) -> None:
    ports = [free_port(), free_port()]
    group.append(5)
    group.process("owner", metricsPort=ports[0])  # never finishes its first batch
    command = "from spark_ehbalance.ops import main; main()"
    arguments = [sys.executable, "-c", command, "metrics", str(group.table), "--port", str(ports[1])]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as watcher:
        try:
            for port in ports:

                def page(port: int = port) -> str:
                    with contextlib.suppress(OSError):
                        return scrape_page(port)
                    return ""

                served = wait_until(page, "the page is served")
                assert "ehbalance_owned_partitions{" in served
                promtool("check", "metrics", text=served)
        finally:
            watcher.kill()
