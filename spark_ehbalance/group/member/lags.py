"""Adds lags to renewals and checkpoints, which write them to the lease table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from spark_ehbalance.group.changes import Checkpoint, Renew, Transition
from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.model import Lease

#: Looks up a partition's lag, counted from a sequence number; returns None if the hub has not reported it.
LagLookup = Callable[[str, int], Lag | None]


def current(find_lag: LagLookup, lease: Lease | None, partition: str, next: int) -> Lag | None:
    """The lag of `partition` from `next` on, combined with the waiting time recorded in its `lease`; None if
    unknown."""
    lag = find_lag(partition, next)
    return lag and lag.with_wait_from(lease.lag if lease else None)


def with_lags(transitions: Iterable[Transition], leases: Mapping[str, Lease], find_lag: LagLookup) -> list[Transition]:
    """`transitions` with the lags of the partitions that they renew."""
    complete: list[Transition] = []
    for transition in transitions:
        lease = leases.get(transition.partition) if isinstance(transition, Renew | Checkpoint) else None
        if isinstance(transition, Checkpoint):
            transition = replace(
                transition, lag=current(find_lag, lease, transition.partition, transition.position.next)
            )
        elif isinstance(transition, Renew) and lease and lease.checkpoint:
            transition = replace(transition, lag=current(find_lag, lease, transition.partition, lease.checkpoint.next))
        complete.append(transition)
    return complete
