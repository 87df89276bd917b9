"""The group that a lease table belongs to: one consumer group of one event hub."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """One (namespace, event hub, consumer group), each in lower case: Event Hubs ignores case in all three.

    The namespace has no port, because one namespace listens on several ports. Only a loopback address keeps its port,
    which distinguishes emulators.
    """

    namespace: str
    hub: str
    consumer_group: str

    @classmethod
    def from_names(cls, namespace: str, hub: str, consumer_group: str) -> Group:
        """The group with these names, ignoring their case and the namespace's port."""
        host, _, port = namespace.lower().partition(":")
        is_emulator = port not in ("", "5671") and is_loopback(host)
        return cls(f"{host}:{port}" if is_emulator else host, hub.lower(), consumer_group.lower())

    def __str__(self) -> str:
        return f"{self.namespace}/{self.hub}/{self.consumer_group}"


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address. Names are not resolved, because the result could change at any time."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
