"""How a member behaves: its strategy and its times."""

from __future__ import annotations

from dataclasses import dataclass

from spark_ehbalance.group.capabilities import LEASE_TABLE, Capabilities
from spark_ehbalance.group.defaults import BALANCE_INTERVAL, HANDOVER_TIMEOUT
from spark_ehbalance.group.durations import renewal_interval
from spark_ehbalance.group.strategies.base import Strategy

#: Seconds after which the leader tidies the store up at the latest, while the table changes.
TIDY_INTERVAL = 300.0

#: Where each renewal is a request: if a lease lasts for six balance intervals, as with the Azure SDKs, these have it
#: renewed at every third look, and leave more than two intervals for another try.
_RENEWAL_PART_PER_LEASE, _ALONG_PART_PER_LEASE = 0.6, 2 / 3


@dataclass(frozen=True, slots=True)
class Settings:
    """How a member behaves. All times are in seconds. `lease_duration` is the group's if this member is its leader; the
    one in force is in the table."""

    strategy: Strategy
    lease_duration: float
    handover_timeout: float = HANDOVER_TIMEOUT
    max_owned: int | None = None
    host: str = ""
    strategy_name: str = ""
    #: Identifies the query in the table: see `QueryRecord`. A consumer has no lineage, and neither has a member whose
    #: store keeps no records.
    lineage: str = ""
    balance_interval: float = BALANCE_INTERVAL
    #: For how long progress may wait for a commit that is made anyway; 0: it makes one itself.
    checkpoint_interval: float = 0.0
    #: Balance also when members or leases have changed, not only once per interval.
    reactive: bool = False
    #: How long a batch may run before its partitions are given back; None: as long as it takes.
    max_stall: float | None = None
    #: Between two looks at the table, to see what others have done: a look costs one listing of the log.
    read_interval: float = 1.0
    #: The same while a handover is pending that concerns this member, so that it takes about a second in all.
    handover_read_interval: float = 0.2
    tidy_interval: float = TIDY_INTERVAL
    #: Nobody else knows the table, so that no lease ends, however long the process was suspended.
    alone: bool = False
    #: Those of the store. Without `atomic` writes, routine ones wait for the next balancing.
    capabilities: Capabilities = LEASE_TABLE

    @property
    def renewal_part(self) -> float:
        """The part of the lease duration after which a lease is renewed."""
        return renewal_interval(1.0) if self.capabilities.atomic else _RENEWAL_PART_PER_LEASE

    @property
    def early_renewal_part(self) -> float:
        """The part of the lease duration after which it is renewed along with any other commit."""
        return (0.5 if self.capabilities.atomic else _ALONG_PART_PER_LEASE) * self.renewal_part
