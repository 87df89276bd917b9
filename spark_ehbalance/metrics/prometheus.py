"""Serves samples to Prometheus, as prometheus-client writes them."""

from __future__ import annotations

import errno
import importlib.util
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.metrics.definitions import Metric, Sample
from spark_ehbalance.metrics.http_server import Answer, HttpServer
from spark_ehbalance.text import logger

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

_LOG = logger(__name__)

#: Seconds after which a port that was taken is tried again: an earlier process of the query may still have it.
_RETRY = 10.0


def need_prometheus(option: str) -> None:
    """Raise `OptionError` if the package that serves `option` is missing."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise OptionError(f"{option} needs the package prometheus-client: install spark-ehbalance[metrics]")


class Collector:
    """Makes Prometheus' families of what `read` returns whenever somebody asks."""

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


class Server:
    """Answers `GET /metrics` at `host` and `port`, from a thread of its own, until it is closed."""

    def __init__(self, host: str, port: int, read: Callable[[], Iterable[Sample]]) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._address = host, port
        self._registry = CollectorRegistry()
        self._registry.register(Collector(read))
        ProcessCollector(registry=self._registry)
        self._closed = threading.Event()
        self._server: HttpServer | None = None

    def start(self) -> None:
        """Raises `EhBalanceError` if the address cannot be used."""
        host, port = self._address
        try:
            self._server = HttpServer(host, port, self._answer)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            why = "another process, or another query, has it" if taken else error.strerror or type(error).__name__
            raise EhBalanceError(f"metrics cannot be served at {host}:{port}: {why}") from error
        threading.Thread(target=self._server.serve_forever, name="ehbalance-metrics", daemon=True).start()

    def _answer(self, path: str) -> Answer:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return Answer(200, CONTENT_TYPE_LATEST, generate_latest(self._registry))

    def start_when_free(self) -> None:
        """As `start`; where the address cannot be used it warns once, and tries again and again."""
        try:
            self.start()
        except EhBalanceError as error:
            _LOG.warning(
                "%s. The query goes on without, and tries again every %g s: each query of a driver needs a metricsPort "
                "of its own", error, _RETRY,
            )  # fmt: skip
            threading.Thread(target=self._retry, name="ehbalance-metrics", daemon=True).start()

    def _retry(self) -> None:
        while not self._closed.wait(_RETRY):
            try:
                self.start()
            except EhBalanceError:
                continue
            _LOG.warning("metrics are now served at %s:%d", *self._address)
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
