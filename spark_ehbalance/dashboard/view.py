"""What the page shows of one group, made of the looks at its table. Pure.

Moves are known twice: at once by a look at the leases, and a moment later, with their kind and reason, by the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from spark_ehbalance.dashboard.lag import HOUR_MS, LagHour
from spark_ehbalance.leases.expiry import Observations
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.model import Lease, Member
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.timeline import segments_of, split
from spark_ehbalance.text import plain
from spark_ehbalance.values.position import partition_order

#: The event of a move that a look has found and that is not in the history (yet).
SEEN = "Seen"

#: The most rows of history that are listed.
_MOST_ROWS = 100

#: The most characters of a text that are shown.
_MOST_TEXT = 1000

#: Later than all times, and an integer that JavaScript has.
_OPEN = 1 << 53


@dataclass(frozen=True, slots=True)
class Look:
    """What was found at `now_ms`, milliseconds since 1970, which is `now`, seconds of a monotonic clock: the group, and
    what was added to its history."""

    snapshot: Snapshot
    added: Iterable[OwnershipChange]
    now_ms: int
    now: float


class View:
    """One group. `keeps_all`: see `LeaseStore`."""

    def __init__(self, keeps_all: bool = True) -> None:
        self._keeps_all = keeps_all
        self._observations = Observations()
        self._lag = LagHour()
        self._recorded: dict[tuple[Any, ...], OwnershipChange] = {}
        self._seen: dict[tuple[Any, ...], OwnershipChange] = {}
        self._last: dict[str, Lease] = {}
        self._colours: dict[str, int] = {}

    def sections(self, look: Look) -> dict[str, Any]:
        """The parts of the page after another look, by name, for JSON: each changes for reasons of its own."""
        leases, now_ms = look.snapshot.leases, look.now_ms
        self._observations = self._observations.updated(look.snapshot, look.now)
        self._lag.add({each.partition: lag for each in leases.values() if (lag := each.behind)}, now_ms)
        self._note(look)
        changes, marks = split(_in_order(self._recorded.values()))
        lanes = [*self._lanes(look.snapshot, [*changes, *self._seen.values()], now_ms - HOUR_MS)]
        self._colour(look.snapshot, lanes)
        texts = {
            "colours": [*self._colours.items()],
            "group": self._group(look),
            "moves": {"lanes": lanes, "orders": [[each.at, each.partition, each.text] for each in marks]},
            "decisions": [*_rows(_in_order([*self._recorded.values(), *self._seen.values()]))],
        }
        lags = {"lag": self._lag.whole(), "lagMinutes": self._lag.by_partition(now_ms)}
        return {name: _shown(each) for name, each in texts.items()} | lags

    # --- moves -------------------------------------------------------------------------------------------------

    def _note(self, look: Look) -> None:
        """Keep the changes of the last hour: those that are recorded, and of those that were seen what is not."""
        begin_ms = look.now_ms - HOUR_MS
        for each in look.added:
            self._recorded[each.partition, each.epoch, each.event, each.at_ms, each.by] = each
        known = {_change(each) for each in self._recorded.values()}
        latest: dict[str, OwnershipChange] = {}
        for each in sorted(split(self._recorded.values())[0], key=lambda each: (each.epoch or 0, each.at_ms)):
            latest[str(each.partition)] = each
        for lease in look.snapshot.leases.values():
            before, told = self._last.get(lease.partition), latest.get(lease.partition)
            if before is not None and before.owner == lease.owner:
                continue
            if before is None and (lease.owner is None or lease.owned_since_ms < begin_ms):
                continue
            owner_before = before.owner if before else told.owner if told else None
            at_ms = lease.owned_since_ms if lease.owner and lease.owned_since_ms else look.now_ms
            seen = OwnershipChange(at_ms, lease.partition, SEEN, owner_before, lease.owner, lease.epoch, None, "")
            if lease.owner != owner_before:
                self._seen[_change(seen)] = seen
        self._last = dict(look.snapshot.leases)
        self._recorded = {key: each for key, each in self._recorded.items() if each.at_ms > begin_ms}
        self._seen = {key: each for key, each in self._seen.items() if key not in known and each.at_ms > begin_ms}

    def _lanes(self, snapshot: Snapshot, changes: list[OwnershipChange], begin_ms: int) -> Iterator[tuple[str, Any]]:
        """Each partition with its owners since `begin_ms`: [start, end, owner]; None: it is the owner."""
        moved = {each.partition for each in changes}
        stayed = {each.partition: each.owner for each in snapshot.leases.values() if each.partition not in moved}
        lanes: dict[str, list[list[Any]]] = {partition: [] for partition in snapshot.leases}
        for each in segments_of(changes, stayed, 0, _OPEN):
            lane, end = lanes.setdefault(each.partition, []), None if each.end == _OPEN else each.end
            if lane and lane[-1][1:] == [each.start, each.owner]:  # it was started again
                lane[-1][1] = end
            elif end is None or end > begin_ms:
                lane.append([each.start, end, each.owner])
        yield from lanes.items()

    def _colour(self, snapshot: Snapshot, lanes: list[tuple[str, Any]]) -> None:
        """Give each member a number, which it keeps while it is shown; the lowest that is free, the oldest first."""
        ids = [each.id for each in sorted(snapshot.members.values(), key=lambda each: each.joined)]
        ids += sorted({owner for _, lane in lanes for *_, owner in lane} - {*ids})
        shown = {*ids}
        self._colours = {id: number for id, number in self._colours.items() if id in shown}
        taken = {*self._colours.values()}
        free = (number for number in range(len(ids)) if number not in taken)
        for id in ids:
            if id not in self._colours:
                self._colours[id] = next(free)

    # --- the present -------------------------------------------------------------------------------------------

    def _group(self, look: Look) -> dict[str, Any]:
        snapshot = look.snapshot
        return {
            "namespace": snapshot.group.namespace,
            "hub": snapshot.group.hub,
            "consumerGroup": snapshot.group.consumer_group,
            "keepsAll": self._keeps_all,
            "leader": snapshot.leader,
            "leaseMs": snapshot.lease_duration_ms,
            "partitions": [_partition(each) for each in snapshot.leases.values()],
            "members": [
                self._member(each, look) for each in sorted(snapshot.members.values(), key=lambda each: each.joined)
            ],
        }

    def _member(self, member: Member, look: Look) -> dict[str, Any]:
        """`seen`: when the last sign of life was seen, by this machine's clock; of the first look by the member's."""
        observed, load = self._observations.members.get(member.id), member.load
        seen = member.renewed_at_ms
        if observed is not None and not observed.cold:
            seen = look.now_ms - round(1000 * (look.now - observed.since))
        return {
            "id": member.id,
            "host": member.host,
            "state": member.state.value,
            "strategy": member.strategy,
            "most": member.max_owned,
            "started": member.started_at_ms,
            "seen": seen,
            "rate": load and load.rate,
            "backlog": load and load.backlog,
            "batch": load and load.batch_seconds,
            "batchSince": look.snapshot.in_batch_since_ms(member),
            "cpu": load and load.cpu,
        }


def _partition(lease: Lease) -> dict[str, Any]:
    lag, handover, pin = lease.behind, lease.handover, lease.pin
    return {
        "id": lease.partition,
        "owner": lease.owner,
        "epoch": lease.epoch,
        "since": lease.owned_since_ms,
        "readUpTo": lease.checkpoint and lease.checkpoint.sequence_number,
        "next": handover and handover.to,
        "pin": pin and pin.to,
        "rate": lease.load and lease.load.rate,
        "lag": lag and [lag.events, lag.unread_since_ms, lag.at_ms],
    }


def _change(change: OwnershipChange) -> tuple[Any, ...]:
    """Identifies a change of owner, however it is known."""
    return change.partition, change.epoch, change.owner


def _in_order(changes: Iterable[OwnershipChange]) -> list[OwnershipChange]:
    return sorted(changes, key=lambda each: (each.at_ms, each.epoch or 0, partition_order(each.partition or "")))


def _rows(changes: list[OwnershipChange]) -> Iterator[dict[str, Any]]:
    """The newest first; what happened to several partitions at the same time is one row."""
    for _, found in islice(groupby(reversed(changes), _deed), _MOST_ROWS):
        rows = [*found]
        first = rows[0]
        yield {
            "at": first.at_ms,
            "event": first.event,
            "partitions": sorted({each.partition for each in rows if each.partition is not None}, key=partition_order),
            "from": first.owner_before,
            "to": first.owner,
            "by": first.by,
            "why": first.why,
        }


def _deed(change: OwnershipChange) -> tuple[Any, ...]:
    return change.at_ms // 1000, change.event, change.owner_before, change.owner, change.by, change.why


def _shown(value: Any) -> Any:
    """`value` with all texts as they may be shown: others have written them, and a browser draws millions of characters
    for minutes."""
    if isinstance(value, str):
        return plain(value if len(value) <= _MOST_TEXT else f"{value[:_MOST_TEXT]}…")
    if isinstance(value, dict):
        return {name: _shown(each) for name, each in value.items()}
    return [_shown(each) for each in value] if isinstance(value, (list, tuple)) else value
