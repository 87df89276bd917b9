"""Pushes samples by OpenTelemetry's protocol (OTLP over HTTP), by its SDK."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from spark_ehbalance.errors import OptionError
from spark_ehbalance.metrics.definitions import METRICS, Metric, Sample

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics.export import MetricReader

#: The value of the option that leaves the address to OpenTelemetry's environment variables.
ENVIRONMENT = "environment"

#: Seconds for which samples are good for all instruments, each of which asks on its own.
_FRESH = 1.0

#: Milliseconds that the last push may take: Spark kills the planner some seconds after it has asked it to stop.
_LAST_PUSH_MS = 1000


def need_otlp(option: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raise `OptionError` if a package that `option` needs is missing, or the environment asks for another protocol."""
    try:
        found = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http.metric_exporter") is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise OptionError(
            f"{option} needs the packages opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http: install "
            "spark-ehbalance[metrics]"
        )
    for name in ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if (protocol := environment.get(name) or "http/protobuf") != "http/protobuf":
            raise OptionError(f"{option} is set and {name}={protocol[:40]!r}: allowed is http/protobuf")


def endpoint(text: str) -> str:
    """An OTLP endpoint, with the path at which metrics are taken if it has none; or `ENVIRONMENT`. Raises `ValueError`
    with what is allowed."""
    if text == ENVIRONMENT:
        return text
    allowed = f"an address such as http://HOST:4318, or {ENVIRONMENT} for that in OpenTelemetry's variables"
    try:
        parts = urlsplit(text)
        sound = parts.hostname and parts.port != 0 and text.isprintable() and " " not in text
    except ValueError:  # of the port, or of an IPv6 address
        raise ValueError(allowed) from None
    if parts.scheme not in ("http", "https") or not sound or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(allowed)
    return text if parts.path.strip("/") else f"{text.rstrip('/')}/v1/metrics"


class Pusher:
    """Pushes what `read` returns from a thread of its own, every `OTEL_METRIC_EXPORT_INTERVAL`, until it is closed."""

    def __init__(self, read: Callable[[], Iterable[Sample]], reader: MetricReader, instance: str) -> None:
        """`instance` tells apart the senders of one service."""
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource

        self._read = read
        self._samples: dict[Metric, list[Sample]] = {}
        self._fresh_until = 0.0
        # What the environment says in OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES goes first.
        given = Resource.create({"service.instance.id": instance})
        named = not str(given.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
        resource = given if named else given.merge(Resource({SERVICE_NAME: "ehbalance"}))
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("ehbalance")
        for each in METRICS:
            make = meter.create_observable_counter if each.is_counter else meter.create_observable_gauge
            make(each.otel_name, [self._observer(each)], unit=each.unit, description=each.help)

    @classmethod
    def to(cls, address: str, read: Callable[[], Iterable[Sample]], instance: str) -> Pusher:
        """One that pushes to `address`, as `endpoint` returns it."""
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        exporter = OTLPMetricExporter(None if address == ENVIRONMENT else address)
        return cls(read, PeriodicExportingMetricReader(exporter), instance)

    def close(self) -> None:
        """Push once more, for a second at most."""
        self._provider.shutdown(_LAST_PUSH_MS)

    def _observer(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(value, dict(zip(metric.labels, labels, strict=True)))
                for _, labels, value in self._now().get(metric, ())
            ]

        return observe

    def _now(self) -> Mapping[Metric, list[Sample]]:
        if time.monotonic() >= self._fresh_until:
            samples: dict[Metric, list[Sample]] = {}
            for each in self._read():
                samples.setdefault(each.metric, []).append(each)
            self._samples, self._fresh_until = samples, time.monotonic() + _FRESH
        return self._samples
