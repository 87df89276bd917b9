"""When a stalled partition is probed, and how far it may be read. Pure; `QueryEngine` applies it.

The partition is left out of batches until a probe, a receiver at its checkpoint, has received an event. The first range
after that ends behind the received events, so that a partition that stops at a later event doubles next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from spark_ehbalance.group.member.membership import OwnedLease
from spark_ehbalance.group.position import Position

#: Seconds between seeing a partition's second stall in a row and the next probe, doubled after each further one, and
#: at most: each probe that succeeds costs a batch of `receiverTimeout` if the partition stalls again.
_BACKOFF, _LONGEST_BACKOFF = 30.0, 600.0
_MOST_DOUBLINGS = 10


class Probe(NamedTuple):
    """A partition that has stalled `stalled` times at sequence number `position`. A probe is due at monotonic time
    `due`; `end` is the sequence number behind the events that one has received, None before."""

    position: int
    stalled: int
    due: float
    end: int | None = None

    @property
    def readable_to(self) -> int:
        """No batch reads beyond this sequence number."""
        return self.position if self.end is None else self.end


def backoff(stalled: int) -> float:
    """Seconds from when a member sees this number of stalls in a row to its probe."""
    return 0.0 if stalled < 2 else min(_LONGEST_BACKOFF, _BACKOFF * 2.0 ** min(stalled - 2, _MOST_DOUBLINGS))


def update_probes(
    probes: Mapping[str, Probe],
    owned: Mapping[str, OwnedLease],
    positions: Mapping[str, Position],
    now: float,
    *,
    at_once: bool = False,
) -> dict[str, Probe]:
    """`probes`, updated for the `owned` partitions that are stalled; those of other partitions are kept.

    `positions` are where reading continues: uncommitted progress ends a stall as well. With `at_once` new probes do not
    wait for their back-off.
    """
    followed = {partition: probe for partition, probe in probes.items() if partition not in owned}
    for partition, holding in owned.items():
        checkpoint, known = holding.checkpoint.next, probes.get(partition)
        if not holding.stalled or (partition in positions and positions[partition].next != checkpoint):
            continue
        if known is None or (known.position, known.stalled) != (checkpoint, holding.stalled):
            due = now if at_once else now + backoff(holding.stalled)
            known = Probe(checkpoint, holding.stalled, due)
        followed[partition] = known
    return followed


def with_probe_results(
    probes: Mapping[str, Probe], probed: Mapping[str, int], ends: Mapping[str, int], repeat_at: float
) -> dict[str, Probe]:
    """The probes after an answer for the partitions `probed` at these positions: those in `ends` received events up to
    there, the others are probed again at `repeat_at`."""
    return {
        partition: probe._replace(due=repeat_at, end=ends.get(partition))
        if probed.get(partition) == probe.position and probe.end is None
        else probe
        for partition, probe in probes.items()
    }


def pending_probes(probes: Mapping[str, Probe], owned: Mapping[str, OwnedLease]) -> dict[str, Probe]:
    """The probes of owned partitions that have received nothing yet."""
    return {partition: probe for partition, probe in probes.items() if partition in owned and probe.end is None}


def warnings(before: Mapping[str, Probe], after: Mapping[str, Probe]) -> Iterator[str]:
    """One warning for each new stall."""
    for partition, (position, stalled, *_) in after.items():
        if partition not in before or before[partition][:2] != (position, stalled):
            yield (
                f"partition {partition}: stalled at sequence number {position}, {stalled} times in a row: the event "
                "hub has events there and delivered none for receiverTimeout. The query leaves it out, reads the "
                "others, and continues with it as soon as a probe receives an event. If that lasts, see "
                '"A partition stalls" in docs/operations.md'
            )
