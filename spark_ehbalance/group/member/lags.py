"""What is unread goes into the lease table along with what is written anyway. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from spark_ehbalance.group.changes import Checkpoint, Heartbeat, Observe, Renew, Transition
from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.model import Lease

#: What is unread of a partition from a sequence number on, as the hub has told; None if it has not.
LagOf = Callable[[str, int], Lag | None]


def current(lag_of: LagOf, lease: Lease | None, partition: str, next: int) -> Lag | None:
    """What is unread of `partition` from `next` on, also by what its `lease` says."""
    lag = lag_of(partition, next)
    return lag and lag.as_known_by(lease.lag if lease else None)


def with_lags(
    transitions: Iterable[Transition], leases: Mapping[str, Lease], lag_of: LagOf, unowned: Callable[[], Iterable[str]]
) -> list[Transition]:
    """`transitions` with the lag of each partition that they renew, and, beside a heartbeat, of those that `unowned`
    returns. They are routine as much as before."""
    complete: list[Transition] = []
    heartbeat: Heartbeat | None = None
    for each in transitions:
        lease = leases.get(each.partition) if isinstance(each, Renew | Checkpoint) else None
        if isinstance(each, Heartbeat):
            heartbeat = each
        if isinstance(each, Checkpoint):
            each = replace(each, lag=current(lag_of, lease, each.partition, each.position.next))
        elif isinstance(each, Renew) and lease and lease.checkpoint:
            each = replace(each, lag=current(lag_of, lease, each.partition, lease.checkpoint.next))
        complete.append(each)
    if heartbeat is None:
        return complete
    changed = {getattr(each, "partition", None) for each in complete}
    for lease in [leases[partition] for partition in unowned() if partition not in changed]:
        lag = current(lag_of, lease, lease.partition, lease.checkpoint.next) if lease.checkpoint else None
        if lag is not None:
            complete.append(
                Observe(
                    by=heartbeat.by,
                    at_ms=heartbeat.at_ms,
                    partition=lease.partition,
                    epoch=lease.epoch,
                    lag=lag,
                    unchanged_counter=lease.counter,
                )
            )
    return complete
