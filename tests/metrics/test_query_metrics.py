"""What a query serves and pushes, with the real client, its emulator and a Delta table."""

from __future__ import annotations

import base64
import importlib.util
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.leases.model import Author
from spark_ehbalance.leases.transitions import Join
from spark_ehbalance.member.counts import Counts
from spark_ehbalance.metrics import prometheus
from spark_ehbalance.metrics.definitions import LAG_EVENTS, LAG_MEASURED, LAG_SECONDS, METRICS, TABLE
from spark_ehbalance.metrics.prometheus import Server
from spark_ehbalance.source.options import stream_options
from spark_ehbalance.source.query_metrics import export_metrics, query_samples
from spark_ehbalance.stores.base import commit
from spark_ehbalance.stores.delta import DeltaStore
from tests.metrics.prometheus import free_port, scraped
from tests.source.queries import Group
from tests.source.support import HUB
from tests.stores.store_conformance import GROUP
from tests.waiting import wait_until

HEADER_SECRET = "eyJhbGciOiJIUzI1NiJ9.c2VjcmV0b2ZPVEVM"


def value(page: str, name: str, **labels: str) -> float:
    """The value of the only series of that name with these labels."""
    found = [line for line in page.splitlines() if line.startswith(f"ehbalance_{name}{{")]
    (line,) = (each for each in found if all(f'{label}="{text}"' in each for label, text in labels.items()))
    return float(line.rpartition(" ")[2])


class Receiver:
    """An OTLP receiver: what has come, with the paths and the headers."""

    def __init__(self) -> None:
        self.got: list[ExportMetricsServiceRequest] = []
        self.paths: list[str] = []
        self.headers: list[str] = []

    @contextmanager
    def serving(self) -> Iterator[int]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append(ExportMetricsServiceRequest.FromString(body))
                receiver.paths.append(self.path)
                receiver.headers.append(self.headers.get("authorization", ""))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield server.server_port
            server.shutdown()


def test_a_query_counts_what_it_does(group: Group) -> None:
    port = free_port()
    query = group.query(metricsPort=port)
    with export_metrics(group.options(metricsPort=port), query.planner):
        group.append(10)
        query.read(80)
        group.append(5)
        query.batch()
        page = wait_until(lambda: "batch_start" in (now := scraped(port)) and now, "a batch runs")
        assert value(page, "batches_total", member="a") >= 1
        assert value(page, "events_total", member="a") == 80
        assert value(page, "batch_seconds_total") > 0
        assert time.time() - 60 < value(page, "batch_start_timestamp_seconds") < time.time()
        assert value(page, "moves_total", reason="Claim") == 8
        assert value(page, "commits_total") >= 2
        assert value(page, "commit_seconds_total") > 0
        assert value(page, "store_available") == value(page, "hub_available") == 1
        for kind in ("get", "put"):
            assert value(page, "store_requests_total", kind=kind) > 0
    with pytest.raises(OSError, match="refused"):
        scraped(port)


def test_all_that_a_query_has_is_declared_for_it(group: Group) -> None:
    query = group.query()
    group.append(1)
    query.batch()
    wait_until(lambda: group.snapshot().members["a"].load, "the load is written")
    declared = {each for each in METRICS if each.source != TABLE}
    lag = {LAG_EVENTS, LAG_SECONDS, LAG_MEASURED}
    wait_until(
        lambda: {each.metric for each in query_samples(query.planner)} | lag == declared, "everything is there", 20
    )


def test_while_the_table_is_away_nothing_is_said_about_the_group(group: Group) -> None:
    query = group.query()
    moved = group.table.rename(group.table.with_name("away"))

    def samples() -> dict[str, float]:
        return {each.metric.name: each.value for each in query_samples(query.planner)}

    wait_until(lambda: samples()["ehbalance_store_available"] == 0, "the table is found away")
    assert "ehbalance_unowned_partitions" not in samples()
    assert samples()["ehbalance_owned_partitions"] == 8
    moved.rename(group.table)
    wait_until(lambda: samples()["ehbalance_store_available"] == 1, "the table is back")
    assert samples()["ehbalance_unowned_partitions"] == 0


def joining(member: str) -> Join:
    by = Author(member, "1")
    return Join(by=by, at_ms=0, host="", max_owned=None, strategy="cooperative", lease_duration_ms=3000)


def test_lost_races_are_counted(tmp_path: Path) -> None:
    with DeltaStore(str(tmp_path / "leases")) as store, DeltaStore(str(tmp_path / "leases")) as rival:
        store.create(GROUP)
        before, counts = store.read(), Counts()
        commit(rival, rival.read(), [joining("b")])
        counts.committed(commit(store, before, [joining("a")]), [])
        counts.committed(commit(store, store.read(), [joining("c")]), [])
        assert (counts.commits, counts.lost) == (2, 1)
        assert store.requests["put"] >= 4


def test_a_port_that_is_taken_is_one_line_and_taken_over_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prometheus, "_RETRY", 0.05)
    port = free_port()
    first, second = (Server("127.0.0.1", port, tuple) for _ in range(2))
    first.start()
    with pytest.raises(EhBalanceError, match=f"127.0.0.1:{port}: another process, or another query, has it"):
        second.start()
    second.start_when_free()
    (line,) = caplog.messages
    assert f"127.0.0.1:{port}" in line
    assert "metricsPort" in line
    first.close()
    wait_until(lambda: len(caplog.messages) == 2, "the port is taken over")
    assert "process_cpu_seconds_total" in scraped(port)
    second.close()


def test_connections_that_say_nothing_take_few_files_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus._Handler, "timeout", 1.0)
    port = free_port()
    server = Server("127.0.0.1", port, tuple)
    server.start()
    idle, before = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(40)], threading.active_count()
    for each in idle[-20:]:
        assert each.recv(1) == b"", "as others are listened to"
    assert threading.active_count() <= before + prometheus._MOST
    assert [each.recv(1) for each in idle[:20]] == [b""] * 20, "as they have said nothing"
    wait_until(lambda: "process_cpu_seconds_total" in scraped(port), "Prometheus is answered")
    server.close()
    for each in idle:
        each.close()


def test_a_query_pushes_to_opentelemetry(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver()
    with receiver.serving() as port:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer%20{HEADER_SECRET}")
        for endpoint in (f"http://127.0.0.1:{port}", "environment"):
            query = group.query(endpoint[:4])
            with export_metrics(group.options(metricsOtlp=endpoint), query.planner):
                pass  # the last push is at the end
            query.stop()
    assert receiver.paths == ["/v1/metrics"] * 2
    assert receiver.headers == [f"Bearer {HEADER_SECRET}"] * 2
    (pushed,) = receiver.got[0].resource_metrics
    named = {each.key: each.value.string_value for each in pushed.resource.attributes}
    assert (named["service.name"], named["service.instance.id"]) == ("ehbalance", "http")
    points = {each.name: each for each in pushed.scope_metrics[0].metrics}
    (owned,) = points["ehbalance.owned_partitions"].gauge.data_points
    assert (owned.as_double, {each.key for each in owned.attributes}) == (8, {"group", "member"})
    assert points["ehbalance.commits"].sum.is_monotonic
    assert points["ehbalance.commit_seconds"].unit == "s"
    assert HEADER_SECRET.encode() not in receiver.got[0].SerializeToString()


def test_no_secret_is_in_a_metric_or_a_log_line(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = base64.b64encode(b"the-key-of-an-event-hub-01234567").decode()
    with Emulator({HUB: 2}, sas_keys={"reader": key}) as hub:
        group = Group(hub, tmp_path, 2)
        assert key in str(group.raw["connectionString"])
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer%20{HEADER_SECRET}")
        port, nobody = free_port(), free_port()
        more = {"metricsPort": port, "metricsOtlp": f"http://127.0.0.1:{nobody}", "storageSecrets.account_key": key}
        query = group.query(**more)
        began = time.monotonic()
        with export_metrics(group.options(**more), query.planner):
            shown = scraped(port)
            began = time.monotonic()
        assert time.monotonic() - began < 4  # though nobody takes the last push
        group.close()
    shown += caplog.text
    assert "ehbalance_commits_total" in shown
    for secret in (key, key.rstrip("="), HEADER_SECRET):
        assert secret not in shown


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"metricsPort": "0"}, "metricsPort='0' is wrong"),
        (
            {"metricsPort": "9464", "metricsHost": "0.0.0.0/8"},
            "metricsHost='0.0.0.0/8' is wrong: allowed is an address",
        ),
        (
            {"metricsOtlp": "collector:4318"},
            "metricsOtlp='collector:4318' is wrong: allowed is an address such as http://HOST:4318",
        ),
        ({"metricsOtlp": "https://user:hunter22@collector"}, "metricsOtlp holds what looks like a key"),
        ({"metricsOtlp": "https://:hunter22@collector"}, "metricsOtlp"),
        ({"metricsOtlp": "http://collector/#x"}, "allowed is an address such as http://HOST:4318"),
        ({"metricsOtlp": "http://collector:99999"}, "allowed is an address such as http://HOST:4318"),
        ({"metricsOtlp": "http://collector\r\nX: y"}, "allowed is an address such as http://HOST:4318"),
    ],
)
def test_wrong_options_are_one_line(emulator: Emulator, given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=re.escape(told)) as error:
        stream_options({"connectionString": emulator.connection_string(HUB)} | given)
    assert "hunter22" not in str(error.value)


def test_what_is_not_installed_or_not_spoken_is_said_at_the_start(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"connectionString": emulator.connection_string(HUB)}
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(OptionError, match="OTEL_EXPORTER_OTLP_PROTOCOL='grpc': allowed is http/protobuf"):
        stream_options(options | {"metricsOtlp": "environment"})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for option, text in (("metricsPort", "9464"), ("metricsOtlp", "environment")):
        with pytest.raises(OptionError, match=rf"{option} needs the package.*spark-ehbalance\[metrics\]"):
            stream_options(options | {option: text})
