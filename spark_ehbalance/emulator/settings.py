"""The settings of an emulator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """How an emulator runs; the limits are those of the service. Times in seconds."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    consumer_groups: Iterable[str] = ()  # of every hub, beside $Default
    sas_keys: Mapping[str, str] | None = field(default=None, repr=False)  # name to key; None: all tokens are accepted
    idle_timeout: float = 240.0  # a client that is silent for longer is disconnected; other times are parts of it
    tls: bool = False  # TLS with a certificate made on the spot, which clients verify with `Emulator.ca_file`
    tls_names: Iterable[str] = ()  # more host names of that certificate
    websocket_port: int | None = None  # also take AMQP over websocket; 0: a free port
    max_connections: int = 5000
    management_requests: int | None = 50  # answered by each hub in a second; None or 0: all
    settled: bool = True  # False: events are delivered unsettled, each with a tag of its own
    geo_replicated: bool = False  # offsets are no numbers, and `promote` can lose events

    def __post_init__(self) -> None:
        if isinstance(self.consumer_groups, str):
            raise TypeError(f"consumer_groups={self.consumer_groups!r}: a list of names is needed")
