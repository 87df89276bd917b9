"""A member's settings."""

from __future__ import annotations

from dataclasses import dataclass

from spark_ehbalance.group.capabilities import LEASE_TABLE, Capabilities
from spark_ehbalance.group.defaults import BALANCE_INTERVAL, HANDOVER_TIMEOUT
from spark_ehbalance.group.durations import renewal_interval
from spark_ehbalance.group.strategies.base import Strategy

#: Maximum time, in seconds, between two maintenance runs of the leader while the table changes.
TIDY_INTERVAL = 300.0

#: For stores in which each renewal is a separate request: if a lease lasts six balance intervals, as in the Azure SDKs,
#: it is renewed at every third read, with more than two intervals left for a retry.
_SEPARATE_RENEWAL_PART, _SEPARATE_EARLY_PART = 0.6, 2 / 3


@dataclass(frozen=True, slots=True)
class Settings:
    """A member's strategy and other settings; times are in seconds. `lease_duration` becomes the group's if this member
    is its leader; the lease duration in force is in the table."""

    strategy: Strategy
    lease_duration: float
    handover_timeout: float = HANDOVER_TIMEOUT
    max_owned: int | None = None
    host: str = ""
    strategy_name: str = ""
    #: Identifies the query in the table (see `QueryRecord`); empty for consumers and in stores without records.
    lineage: str = ""
    balance_interval: float = BALANCE_INTERVAL
    #: Balance whenever members or leases change, and not only once per interval.
    reactive: bool = False
    #: Maximum duration of a batch before its partitions are released; None means no limit.
    max_stall: float | None = None
    #: Time between two reads of the table; each read is one request.
    read_interval: float = 1.0
    #: The read interval while a handover from or to this member is pending, so that the handover takes about a second.
    handover_read_interval: float = 0.2
    tidy_interval: float = TIDY_INTERVAL
    #: No other member exists, so leases never expire, even if the process was suspended.
    alone: bool = False
    #: The store's capabilities. Without `atomic` writes, routine transitions wait for the next balancing cycle.
    capabilities: Capabilities = LEASE_TABLE

    @property
    def renewal_part(self) -> float:
        """The fraction of the lease duration after which a lease is renewed."""
        return renewal_interval(1.0) if self.capabilities.atomic else _SEPARATE_RENEWAL_PART

    @property
    def early_renewal_part(self) -> float:
        """The fraction of the lease duration after which any other commit renews the lease as well."""
        return (0.5 if self.capabilities.atomic else _SEPARATE_EARLY_PART) * self.renewal_part
