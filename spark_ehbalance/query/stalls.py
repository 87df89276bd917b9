"""Decides when to probe a stalled partition, and how far to read it afterwards. Does no I/O; `QueryEngine` applies it.

Batches omit the partition until a probe (a receiver at the checkpoint) has received an event. The first range after
that ends with the last event that the probe received, so hardly any events are read twice if the partition stalls again
at a later event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from spark_ehbalance.group.member.membership import OwnedLease
from spark_ehbalance.group.position import Position

#: Seconds from a partition's second consecutive stall to the next probe, doubled after each further stall; and the
#: maximum. The wait grows because each stall after a successful probe delays a batch by `receiverTimeout`.
_BACKOFF, _MAX_BACKOFF = 30.0, 600.0
_MAX_DOUBLINGS = 10


class StallProbe(NamedTuple):
    """The probe of a partition that has stalled `stall_count` times at sequence number `position`. The probe is due at
    monotonic time `due`. `end` is the sequence number after the last event that it received; None if it has received no
    event yet."""

    position: int
    stall_count: int
    due: float
    end: int | None = None

    @property
    def readable_to(self) -> int:
        """The sequence number at which each batch must stop reading (exclusive)."""
        return self.position if self.end is None else self.end


def backoff(stall_count: int) -> float:
    """Seconds that a member waits before it probes a partition that has stalled `stall_count` consecutive times."""
    return 0.0 if stall_count < 2 else min(_MAX_BACKOFF, _BACKOFF * 2.0 ** min(stall_count - 2, _MAX_DOUBLINGS))


def update_probes(
    probes: Mapping[str, StallProbe],
    owned: Mapping[str, OwnedLease],
    positions: Mapping[str, Position],
    now: float,
    *,
    at_once: bool = False,
) -> dict[str, StallProbe]:
    """The `probes`, updated for the stalled partitions among the `owned` ones.

    `positions` are the positions at which reading continues; progress ends a stall even before it is committed. The
    probes of partitions that are not owned are kept. With `at_once`, new probes do not wait for the back-off.
    """
    followed = {partition: probe for partition, probe in probes.items() if partition not in owned}
    for partition, holding in owned.items():
        checkpoint, known = holding.checkpoint.next, probes.get(partition)
        if not holding.stall_count or (partition in positions and positions[partition].next != checkpoint):
            continue
        if known is None or (known.position, known.stall_count) != (checkpoint, holding.stall_count):
            due = now if at_once else now + backoff(holding.stall_count)
            known = StallProbe(checkpoint, holding.stall_count, due)
        followed[partition] = known
    return followed


def with_probe_results(
    probes: Mapping[str, StallProbe], probed: Mapping[str, int], ends: Mapping[str, int], repeat_at: float
) -> dict[str, StallProbe]:
    """The probes after the partitions `probed` were probed at these positions. `ends` maps each partition that
    delivered events to the sequence number after the last one. The other partitions are probed again at `repeat_at`."""
    return {
        partition: probe._replace(due=repeat_at, end=ends.get(partition))
        if probed.get(partition) == probe.position and probe.end is None
        else probe
        for partition, probe in probes.items()
    }


def pending_probes(probes: Mapping[str, StallProbe], owned: Mapping[str, OwnedLease]) -> dict[str, StallProbe]:
    """The probes of owned partitions that have not received any event yet."""
    return {partition: probe for partition, probe in probes.items() if partition in owned and probe.end is None}


def warnings(before: Mapping[str, StallProbe], after: Mapping[str, StallProbe]) -> Iterator[str]:
    """A warning for each stall that is new in `after`."""
    for partition, (position, stall_count, *_) in after.items():
        if partition not in before or before[partition][:2] != (position, stall_count):
            yield (
                f"Partition {partition} has stalled at sequence number {position}: the event hub has events there but "
                "delivered none within receiverTimeout. The query skips this partition, continues to read the others, "
                "and resumes this one as soon as a probe receives an event. If the stall persists, see "
                f'"A partition stalls" in docs/operations.md. consecutiveStalls={stall_count}'
            )
