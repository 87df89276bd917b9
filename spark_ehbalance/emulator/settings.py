"""The settings of an emulator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """Settings of an emulator. The default limits are the service's; times are in seconds."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: a free port
    consumer_groups: Iterable[str] = ()  # created in every hub, in addition to $Default
    sas_keys: Mapping[str, str] | None = field(default=None, repr=False)  # name → key; None accepts all tokens
    idle_timeout: float = 240.0  # after which a silent client is disconnected; other timeouts are fractions of it
    tls: bool = False  # with a new certificate, which clients verify with `Emulator.ca_file`
    tls_names: Iterable[str] = ()  # further host names of that certificate
    websocket_port: int | None = None  # also accept AMQP over websocket; 0: a free port
    max_connections: int = 5000
    management_requests: int | None = 50  # limit per hub and second; None or 0: no limit
    settled: bool = True  # False: events are delivered unsettled, each with its own tag
    geo_replicated: bool = False  # offsets are not numbers, and `promote` can lose events

    def __post_init__(self) -> None:
        if isinstance(self.consumer_groups, str):
            raise TypeError(f"consumer_groups={self.consumer_groups!r}: expected a list of names")
