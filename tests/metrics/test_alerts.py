"""Every alert fires only on its fault: promtool evaluates the rules on generated series."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from spark_ehbalance.metrics.definitions import METRICS
from tests.metrics.prometheus import DASHBOARD, RULES, needs_promtool, promtool

#: Length of the series in minutes, with one value a minute.
MINUTES = 60

_A, _B = 'group="g",member="a"', 'group="g",member="b"'
_P = f'{_A},partition="0"'
_CLOCK = f"0+60x{MINUTES}"  # the current time

#: Two healthy queries; `b` runs batches of half an hour. promtool's clock starts at 0.
HEALTHY = {
    f"ehbalance_store_available{{{_A}}}": f"1x{MINUTES}",
    f"ehbalance_store_available{{{_B}}}": f"1x{MINUTES}",
    f"ehbalance_hub_available{{{_A}}}": f"1x{MINUTES}",
    'ehbalance_unowned_partitions{group="g"}': f"0x{MINUTES}",
    'ehbalance_partitions{group="g"}': f"8x{MINUTES}",
    'ehbalance_lease_duration_seconds{group="g"}': f"30x{MINUTES}",
    'ehbalance_oldest_renewal_timestamp_seconds{group="g"}': _CLOCK,
    f"ehbalance_batch_start_timestamp_seconds{{{_A}}}": _CLOCK,
    f"ehbalance_batch_mean_seconds{{{_A}}}": f"3x{MINUTES}",
    f"ehbalance_batch_start_timestamp_seconds{{{_B}}}": f"0x30 1860+0x{MINUTES - 31}",
    f"ehbalance_batch_mean_seconds{{{_B}}}": f"1800x{MINUTES}",
    f"ehbalance_lag_seconds{{{_P}}}": f"5x{MINUTES}",
    f"ehbalance_stalled{{{_P}}}": f"0x10 1x3 0x{MINUTES - 15}",
    f'ehbalance_moves_total{{{_A},reason="HandOver"}}': f"0x10 4x{MINUTES}",
    'ehbalance_findings{group="g",code="crash_loop"}': f"0x{MINUTES}",
    f"ehbalance_commits_total{{{_A}}}": f"0+60x{MINUTES}",
    f"ehbalance_commit_conflicts_total{{{_A}}}": f"0+30x{MINUTES}",
    f"ehbalance_server_busy_total{{{_A}}}": f"0x10 2x{MINUTES}",
}

_LAGGING = {f"ehbalance_lag_seconds{{{_P}}}": _CLOCK}  # as in most faults

#: Alert → the series that differ during its fault.
FAULTS: Mapping[str, Mapping[str, str]] = {
    "EhbalanceTableUnreachable": _LAGGING | {f"ehbalance_store_available{{{_B}}}": f"0x{MINUTES}"},
    "EhbalanceHubUnreachable": _LAGGING | {f"ehbalance_hub_available{{{_A}}}": f"0x{MINUTES}"},
    "EhbalancePartitionsUnowned": _LAGGING | {'ehbalance_unowned_partitions{group="g"}': f"3x{MINUTES}"},
    "EhbalanceLeaseNotRenewed": _LAGGING | {'ehbalance_oldest_renewal_timestamp_seconds{group="g"}': f"0x{MINUTES}"},
    "EhbalanceBatchHangs": _LAGGING | {f"ehbalance_batch_start_timestamp_seconds{{{_A}}}": f"0x{MINUTES}"},
    "EhbalanceBehind": _LAGGING,
    "EhbalancePartitionStalled": {f"ehbalance_stalled{{{_P}}}": f"0x5 1x{MINUTES - 6}"},
    "EhbalanceCrashLoop": {'ehbalance_findings{group="g",code="crash_loop"}': f"1x{MINUTES}"},
    "EhbalanceManyMoves": {f'ehbalance_moves_total{{{_A},reason="HandOver"}}': f"0+2x{MINUTES}"},
    "EhbalanceContention": {f"ehbalance_commit_conflicts_total{{{_A}}}": f"0+180x{MINUTES}"},
    "EhbalanceServerBusy": {f"ehbalance_server_busy_total{{{_A}}}": f"0+12x{MINUTES}"},
}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def expressions() -> list[str]:
    """The expressions in the rules and the dashboard, as Grafana sends them."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    panel_expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [rule["expr"] for rule in rules()] + [
        expression.replace("$group", ".*").replace("$__rate_interval", "5m") for expression in panel_expressions
    ]


@needs_promtool
def test_every_alert_fires_on_its_fault_only(tmp_path: Path) -> None:
    alerts = [rule["alert"] for rule in rules()]
    assert sorted(alerts) == sorted(FAULTS)
    tests = []
    for fault, series in [("", {}), *FAULTS.items()]:
        # Earlier times detect alerts that fire only for a while.
        checked = [(at, alert) for at in (20, 30, 45) for alert in alerts]
        tests.append(
            {
                "name": fault,
                "interval": "1m",
                "input_series": [{"series": n, "values": v} for n, v in (HEALTHY | series).items()],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                        "eval_time": f"{at}m",
                        "exp_samples": [{"labels": "{}", "value": 1}] if alert == fault else [],
                    }
                    for at, alert in checked
                ],
            }
        )
    file = tmp_path / "test.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", str(file))


@needs_promtool
def test_dashboard_expressions_are_valid(tmp_path: Path) -> None:
    recorded = [{"record": f"shown:{number}", "expr": expression} for number, expression in enumerate(expressions())]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "shown", "rules": recorded}]}))
    promtool("check", "rules", str(file))


def test_rules_and_dashboard_use_all_metrics_and_existing_labels() -> None:
    known = {metric.name: metric for metric in METRICS}
    used = {name for expression in expressions() for name in re.findall(r"\behbalance_\w+", expression)}
    assert used == known.keys()
    labels = {label for metric in METRICS for label in metric.labels}
    grouped = {
        n
        for expression in expressions()
        for by in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
        for n in by.split(", ")
    }
    assert grouped <= labels


def test_docs_list_every_alert() -> None:
    page = (RULES.parents[1] / "docs/monitoring.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(Ehbalance\w+)` \|", page, re.MULTILINE)) == {rule["alert"] for rule in rules()}
