"""A member's settings."""

from __future__ import annotations

from dataclasses import dataclass

from spark_ehbalance.group.capabilities import LEASE_TABLE, Capabilities
from spark_ehbalance.group.defaults import BALANCE_INTERVAL, HANDOVER_TIMEOUT
from spark_ehbalance.group.durations import renewal_interval
from spark_ehbalance.group.strategies.base import Strategy

#: Longest time, in seconds, between two maintenance runs of the leader while the table changes.
TIDY_INTERVAL = 300.0

#: For stores with a request for each renewal: with leases of six balance intervals, as in the Azure SDKs, each is
#: renewed at every third read, with more than two intervals left for a retry.
_RENEWAL_PART_PER_LEASE, _ALONG_PART_PER_LEASE = 0.6, 2 / 3


@dataclass(frozen=True, slots=True)
class Settings:
    """A member's strategy and its times in seconds. `lease_duration` is the group's if this member is its leader; the
    one in force is in the table."""

    strategy: Strategy
    lease_duration: float
    handover_timeout: float = HANDOVER_TIMEOUT
    max_owned: int | None = None
    host: str = ""
    strategy_name: str = ""
    #: Identifies the query in the table, see `QueryRecord`; empty for consumers and stores without records.
    lineage: str = ""
    balance_interval: float = BALANCE_INTERVAL
    #: The longest wait of progress for another commit; 0: it commits at once.
    checkpoint_interval: float = 0.0
    #: Balance also when members or leases change, not only once per interval.
    reactive: bool = False
    #: The longest duration of a batch before its partitions are released; None: no limit.
    max_stall: float | None = None
    #: Between two reads of the table; each is one listing of the log.
    read_interval: float = 1.0
    #: The same while a handover from or to this member is pending, so that it takes about a second.
    handover_read_interval: float = 0.2
    tidy_interval: float = TIDY_INTERVAL
    #: No other member exists, so leases never expire, even if the process was suspended.
    alone: bool = False
    #: The store's. Without `atomic` writes, routine ones wait for the next balancing.
    capabilities: Capabilities = LEASE_TABLE

    @property
    def renewal_part(self) -> float:
        """The part of the lease duration after which a lease is renewed."""
        return renewal_interval(1.0) if self.capabilities.atomic else _RENEWAL_PART_PER_LEASE

    @property
    def early_renewal_part(self) -> float:
        """The part of the lease duration after which another commit also renews it."""
        return (0.5 if self.capabilities.atomic else _ALONG_PART_PER_LEASE) * self.renewal_part
