"""Capabilities of a lease store, declared once by each store."""

from __future__ import annotations

from dataclasses import dataclass

#: Maximum wait, in seconds, before a commit that lost a race is retried.
LONGEST_RETRY_WAIT = 1.0


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a lease store. The defaults are those of a lease table.

    `members`: the store keeps rows of members and queries, handovers, operators' commands, loads, a history, and a row
    for each known partition. `epochs`: the store counts changes of owner, which fences former owners, and it counts
    stalls. `atomic`: a write is one request, which succeeds or fails as a whole. Without `atomic`, each changed lease
    and each checkpoint is a separate request, and a checkpoint does not renew the lease."""

    members: bool = True
    epochs: bool = True
    atomic: bool = True

    def owner_level(self, epoch: int) -> int:
        """The owner level of a lease's reader. Without epochs, it is 0, as in the Azure SDKs."""
        return epoch if self.epochs else 0


LEASE_TABLE = Capabilities()
