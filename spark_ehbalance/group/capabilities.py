"""Capabilities of a lease store, declared once by each store."""

from __future__ import annotations

from dataclasses import dataclass

#: Longest wait before a commit that lost a race is retried, in seconds.
LONGEST_RETRY_WAIT = 1.0


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a backend; the defaults are a lease table's.

    `members`: it keeps rows of members and queries, handovers, orders, loads and a history, and a row of each known
    partition. `epochs`: it counts changes of owner, which fences former owners, and stalls. `atomic`: a write is one
    request, all or nothing; else each changed lease and each checkpoint is a request of its own, and a checkpoint
    renews no lease.
    """

    members: bool = True
    epochs: bool = True
    atomic: bool = True

    def owner_level(self, epoch: int) -> int:
        """The owner level of a lease's reader; without epochs the Azure SDKs'."""
        return epoch if self.epochs else 0


LEASE_TABLE = Capabilities()
