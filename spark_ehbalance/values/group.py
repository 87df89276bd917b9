"""What a lease table is about: one consumer group of one event hub."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """One (namespace, event hub, consumer group).

    Event Hubs compares the three without regard to case, so they are kept in lower case.
    """

    namespace: str
    hub: str
    consumer_group: str

    def __post_init__(self) -> None:
        for name in ("namespace", "hub", "consumer_group"):
            object.__setattr__(self, name, getattr(self, name).lower())

    def __str__(self) -> str:
        return f"{self.namespace}/{self.hub}/{self.consumer_group}"
