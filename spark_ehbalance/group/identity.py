"""The group that a lease table belongs to: one consumer group of one event hub."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """One (namespace, event hub, consumer group), each in lower case: Event Hubs ignores case in all three."""

    namespace: str
    hub: str
    consumer_group: str

    @classmethod
    def of(cls, namespace: str, hub: str, consumer_group: str) -> Group:
        """The group of these names, which may be in any case."""
        return cls(namespace.lower(), hub.lower(), consumer_group.lower())

    def __str__(self) -> str:
        return f"{self.namespace}/{self.hub}/{self.consumer_group}"
