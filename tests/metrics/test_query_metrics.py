"""A query's metrics, with the real client, the emulator and a Delta table."""

from __future__ import annotations

import importlib.util
import re
import time

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.metrics import prometheus
from spark_ehbalance.metrics.definitions import LAG_EVENTS, LAG_SECONDS, METRICS, TABLE
from spark_ehbalance.metrics.prometheus import MetricsServer
from spark_ehbalance.query.options import stream_options
from spark_ehbalance.query.query_metrics import export_metrics, query_samples
from tests.metrics.prometheus import free_port, scrape_page
from tests.query.queries import Group
from tests.query.support import HUB
from tests.raising import raises
from tests.waiting import wait_until


def value(page: str, name: str, **labels: str) -> float:
    """The value of the only series with this name and these labels."""
    series = [line for line in page.splitlines() if line.startswith(f"ehbalance_{name}{{")]
    (match,) = (line for line in series if all(f'{label}="{text}"' in line for label, text in labels.items()))
    return float(match.rpartition(" ")[2])


def test_query_counts_events_moves_and_commits(group: Group) -> None:
    port = free_port()
    query = group.query(metricsPort=port)
    with export_metrics(group.options(metricsPort=port), query.planner):
        group.append(10)
        query.read(80)
        group.append(5)
        query.batch()
        page = wait_until(lambda: "batch_start" in (now := scrape_page(port)) and now, "a batch runs")
        wait_until(lambda: group.snapshot().members["a"].load, "the load is written")
        declared = {metric for metric in METRICS if metric.source != TABLE} - {LAG_EVENTS, LAG_SECONDS}
        wait_until(
            lambda: declared <= {sample.metric for sample in query_samples(query.planner)},
            "all have samples",
            20,
        )
        assert value(page, "events_total", member="a") == 80
        assert time.time() - 60 < value(page, "batch_start_timestamp_seconds") < time.time()
        assert value(page, "moves_total", reason="Claim") == 8
        assert value(page, "commits_total") >= 2
        assert value(page, "store_available") == value(page, "hub_available") == 1
    with pytest.raises(OSError, match="refused"):
        scrape_page(port)


def test_group_metrics_are_missing_while_the_table_is_unavailable(group: Group) -> None:
    query = group.query()
    moved = group.table.rename(group.table.with_name("away"))

    def samples() -> dict[str, float]:
        return {sample.metric.name: sample.value for sample in query_samples(query.planner)}

    wait_until(lambda: samples()["ehbalance_store_available"] == 0, "the table is unavailable")
    assert "ehbalance_unowned_partitions" not in samples()
    assert samples()["ehbalance_owned_partitions"] == 8
    moved.rename(group.table)
    wait_until(lambda: samples()["ehbalance_store_available"] == 1, "the table is back")
    assert samples()["ehbalance_unowned_partitions"] == 0


def test_port_in_use_is_one_warning_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prometheus, "_RETRY", 0.05)
    port = free_port()
    first, second = (MetricsServer("127.0.0.1", port, tuple) for _ in range(2))
    first.start()
    reason = re.compile("another process or query uses it")
    with raises(EhBalanceError, "EHB_PORT_UNAVAILABLE", address=f"127.0.0.1:{port}", reason=reason):
        second.start()
    second.start_when_free()
    (line,) = caplog.messages
    assert f"127.0.0.1:{port}" in line
    assert "metricsPort" in line
    first.close()
    wait_until(lambda: len(caplog.messages) == 2, "the port is taken over")
    assert "process_cpu_seconds_total" in scrape_page(port)
    second.close()


def test_missing_package_is_named(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with raises(OptionError, "EHB_PACKAGE_MISSING", option="metricsPort", install="spark-ehbalance[metrics]"):
        stream_options({"connectionString": emulator.connection_string(HUB), "metricsPort": "9464"})
