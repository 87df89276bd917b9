"""Serves samples to Prometheus in the format of prometheus-client."""

from __future__ import annotations

import errno
import importlib.util
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.metrics.definitions import Metric, Sample
from spark_ehbalance.metrics.http_server import HttpServer, Response
from spark_ehbalance.text import logger

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

_LOG = logger(__name__)

#: Seconds between attempts to open the port, which the query's previous process may still use.
_RETRY = 10.0


def require_prometheus(option: str) -> None:
    """Raise `OptionError` if prometheus-client, which `option` requires, is missing."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise OptionError(
            "EHB_PACKAGE_MISSING", option=option, package="prometheus-client", install="spark-ehbalance[metrics]"
        )


class Collector:
    """On each scrape, yields the samples from `read` as Prometheus metric families."""

    def __init__(self, read: Callable[[], Iterable[Sample]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Family]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[Metric, Any] = {}
        for metric, labels, value in self._read():
            if metric not in families:
                kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
                families[metric] = kind(metric.name, metric.help, labels=metric.labels)
            families[metric].add_metric(labels, value)
        yield from families.values()


class MetricsServer:
    """Serves `GET /metrics` at `host` and `port` in its own thread until it is closed."""

    def __init__(self, host: str, port: int, read: Callable[[], Iterable[Sample]]) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._address = host, port
        self._registry = CollectorRegistry()
        self._registry.register(Collector(read))
        ProcessCollector(registry=self._registry)
        self._closed = threading.Event()
        self._server: HttpServer | None = None

    def start(self) -> None:
        """Start serving. Raises `EhBalanceError` if the address cannot be used."""
        host, port = self._address
        try:
            self._server = HttpServer(host, port, self._respond)
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            reason = "another process or query uses it" if in_use else error.strerror or type(error).__name__
            raise EhBalanceError("EHB_PORT_UNAVAILABLE", address=f"{host}:{port}", reason=reason) from error
        threading.Thread(target=self._server.serve_forever, name="ehbalance-metrics", daemon=True).start()

    def _respond(self, path: str) -> Response:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return Response(200, CONTENT_TYPE_LATEST, generate_latest(self._registry))

    def start_when_free(self) -> None:
        """Start serving. If the address cannot be used, warn once and retry until it can."""
        try:
            self.start()
        except EhBalanceError as error:
            _LOG.warning(
                "metrics are not served yet; each query of a driver needs its own metricsPort: address=%s reason=%r "
                "retry_seconds=%g", error.parameters["address"], error.parameters["reason"], _RETRY,
            )  # fmt: skip
            threading.Thread(target=self._retry, name="ehbalance-metrics", daemon=True).start()

    def _retry(self) -> None:
        while not self._closed.wait(_RETRY):
            try:
                self.start()
            except EhBalanceError:
                continue
            _LOG.warning("metrics are now served: address=%s:%d", *self._address)
            break
        if self._closed.is_set():
            self.close()

    def close(self) -> None:
        """Free the port. May be called before `start`."""
        self._closed.set()
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
