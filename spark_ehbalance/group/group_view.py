"""Facts and findings about a group, derived from a snapshot and the group's history. Pure.

The commands `status`, `dashboard` and `metrics` all present this view.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

from spark_ehbalance.group.defaults import LEASE_DURATION, PROCESSOR_LEASE_DURATION
from spark_ehbalance.group.durations import Durations
from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.group.lag import Lag
from spark_ehbalance.group.model import Lease, Member, MemberState
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.text import age, iso


class Severity(IntEnum):
    """Severities of findings; the worst has the highest value."""

    WARNING = 1
    ERROR = 2


class FindingKind(NamedTuple):
    """A kind of finding. `text` has one placeholder for each parameter; parameters in `_SECONDS` are durations."""

    severity: Severity
    text: str
    remedy: str


_WARNING, _ERROR = Severity

#: All findings by code. The documentation lists this table.
FINDINGS: Mapping[str, FindingKind] = {
    "table_unreadable": FindingKind(
        _ERROR,
        "The lease table cannot be read: {problem}",
        "Queries continue to read the partitions that they own. Check the storage and the permissions.",
    ),
    "no_live_member": FindingKind(
        _ERROR,
        "No member is live; the last heartbeat was {silence} ago.",
        "Start a query with this lease table: it continues from the last checkpoints. If a query is running, it cannot "
        "write to the table: see its driver's log.",
    ),
    "limits_too_small": FindingKind(
        _ERROR,
        "No member owns {partitions}: the members' limits (maxPartitionsOwned) add up to {limit} of {count}.",
        "Raise `maxPartitionsOwned`, or start another query.",
    ),
    "unowned": FindingKind(
        _ERROR,
        "No member has owned {partitions} for {unowned}.",
        "The `balance:` lines of the members' logs (`EHBALANCE_LOG_LEVEL=INFO`) contain the reason.",
    ),
    "all_leaving": FindingKind(
        _ERROR,
        "All live members are leaving: no member has owned {partitions} for {unowned}.",
        "Start a query, or undo a drain (`ehbalance drain LEASE_TABLE OWNER --undo`). A query also leaves while its "
        "batch exceeds `maxStall`.",
    ),
    "crash_loop": FindingKind(
        _ERROR,
        "{members} claimed {partitions} {times} times within {within} without progress: the query keeps failing.",
        "See the driver's log. If an event cannot be read, set `onMalformed` or skip it with `ehbalance seek`.",
    ),
    "stale_member": FindingKind(
        _WARNING,
        "{member} owns {partitions} and has not renewed its leases for {silence}; its lease duration is {duration}.",
        "Another live member takes over. Check that the process is running, is not suspended, and can write to the "
        "lease table.",
    ),
    "fenced": FindingKind(
        _WARNING,
        "Queries with different checkpoints run as {member} on {hosts}: whenever one starts, it stops the others.",
        "Give each query its own `ownerId`, or none.",
    ),
    "long_batch": FindingKind(
        _WARNING,
        "Batch {batch} of {member} has been running for {ran}; {partitions} are waiting for it.",
        "Look for a hanging task or sink in Spark's UI. `maxStall` gives the partitions to other members. With a "
        "trigger interval and without `register(spark)`, the batch may already have ended.",
    ),
    "hub_unreachable": FindingKind(
        _WARNING,
        "{member} has not reached the event hub for {silence}; the lag of {partitions} is unknown.",
        "The hub is unreachable or too busy: see `Event hub unavailable` in the driver's log.",
    ),
    "paused": FindingKind(
        _WARNING,
        "{member} owns {partitions} but leaves {events} events unread: {reason}.",
        'See "A partition is owned but not read" in docs/troubleshooting.md.',
    ),
    "stalled": FindingKind(
        _WARNING,
        "The event hub has delivered no events from {partitions} within receiverTimeout, although {events} "
        "are waiting.",
        'Queries skip these partitions until they deliver events again. If the stall persists, see "A partition '
        'stalls" in docs/operations.md.',
    ),
    "behind": FindingKind(
        _WARNING,
        "{member} owns {partitions} and has a backlog of {events} events; the oldest has been waiting for {waited}.",
        "If the backlog does not shrink, use more queries or cores, larger batches, or a faster sink. If nothing is "
        "read, the query or its sink hangs: see its log.",
    ),
}

#: Parameters that are durations in seconds.
_SECONDS = {"silence", "duration", "unowned", "within", "ran", "waited"}

#: Reasons why a query omits a partition from its batches (`Member.left_out`), and `trigger` if Spark requests no batch.
_PAUSES = {
    "state": "the event hub has not reported their state",
    "position": "the event before the checkpoint is not in the event hub",
    "limit": "other partitions use up maxEventsPerTrigger",
    "trigger": "Spark has not requested a batch",
}

#: In milliseconds: the age above which unread events and batches are findings (or three average batches, if longer);
#: the time for which partitions may be unowned (two balance intervals); and the period in which crash loops are
#: counted.
_PATIENCE_MS, _FREE_MS, _WINDOW_MS = 60_000, 20_000, 600_000
_LONG_FACTOR = 3

#: Number of claims of one partition at one position within `_WINDOW_MS` that count as a crash loop.
_MANY = 3

_TAKES = {"Claim", "Steal", "HandOver"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of the group (`partitions` is empty) or of some partitions. `parameters` are JSON values."""

    code: str
    partitions: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def severity(self) -> Severity:
        return FINDINGS[self.code].severity

    @property
    def text(self) -> str:
        """The finding as one sentence."""
        shown = {"partitions": ranges(self.partitions)}
        for name, value in self.parameters.items():
            if name in _SECONDS:
                shown[name] = age(round(1000 * value))
            else:
                shown[name] = ", ".join(value) if isinstance(value, list) else _PAUSES.get(value, value)
        return FINDINGS[self.code].text.format(**shown)

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity.name.lower(),
            "partitions": self.partitions,
            "parameters": self.parameters,
            "text": self.text,
            "remedy": FINDINGS[self.code].remedy,
        }


def ranges(partitions: Sequence[str]) -> str:
    """Partition ids in human-readable form, such as `partitions 0-3, 7`."""
    runs: list[list[str]] = []
    for partition in partitions:
        if runs and partition.isdecimal() and runs[-1][-1].isdecimal() and int(partition) == int(runs[-1][-1]) + 1:
            runs[-1].append(partition)
        else:
            runs.append([partition])
    shown = ", ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"partition{'s' if len(partitions) != 1 else ''} {shown}"


@dataclass(frozen=True)
class GroupView:
    """The group at `now_ms`, milliseconds since 1970 by the viewer's clock.

    `keeps_members` is false for the Azure SDKs' blob containers, where every owner counts as a member. `observed_ms`
    maps members to the times at which the viewer observed their last renewals. For other members, the stored times are
    used, which come from the writers' clocks. `problem` is the reason why the table cannot be read now.
    """

    snapshot: Snapshot
    now_ms: int
    history: Sequence[OwnershipChange] = ()
    keeps_members: bool = True
    observed_ms: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""

    # --- facts ---------------------------------------------------------------------------------------------------

    @cached_property
    def members(self) -> list[Member]:
        """The members, oldest first. If the store keeps no members, each owner counts as one, with `joined` 0."""
        if self.keeps_members:
            return sorted(self.snapshot.members.values(), key=lambda member: member.joined)
        return [Member(id, "", 0, renewed_at_ms=at_ms) for id, at_ms in sorted(self.last_seen_ms.items())]

    @cached_property
    def last_seen_ms(self) -> Mapping[str, int]:
        """The time of the last renewal of each member and owner."""
        last = {member.id: member.renewed_at_ms for member in self.snapshot.members.values()}
        for lease in self.snapshot.leases.values():
            if lease.owner is not None:
                last[lease.owner] = max(lease.renewed_at_ms, last.get(lease.owner, 0))
        return {id: self.observed_ms.get(id, at_ms) for id, at_ms in last.items()}

    @cached_property
    def _durations(self) -> Durations:
        default = LEASE_DURATION if self.keeps_members else PROCESSOR_LEASE_DURATION
        return Durations.from_snapshot(self.snapshot, (self.snapshot.lease_duration_ms or 1000 * default) / 1000)

    @cached_property
    def lags(self) -> Mapping[str, Lag]:
        """The known lags by partition."""
        return {lease.partition: lag for lease in self.snapshot.leases.values() if (lag := lease.current_lag)}

    def silence_ms(self, member: str) -> int:
        return max(0, self.now_ms - self.last_seen_ms.get(member, 0))

    def is_live(self, member: str) -> bool:
        """Whether the member has renewed its leases within its lease duration."""
        return member in self.last_seen_ms and self.silence_ms(member) <= 1000 * self._durations.allowed_silence(member)

    @cached_property
    def last_heartbeat_ms(self) -> int:
        """The time of the group's last heartbeat; 0 if no query has ever joined."""
        seen = [*self.last_seen_ms.values(), *(query.at_ms for query in self.snapshot.queries.values())]
        return max([*seen, *(lease.renewed_at_ms for lease in self.snapshot.leases.values())], default=0)

    @cached_property
    def _any_member_live(self) -> bool:
        return any(map(self.is_live, self.last_seen_ms))

    def backlog(self, lags: Collection[Lag]) -> tuple[int, float | None]:
        """The number of unread events, and the age of the oldest in seconds (None: unknown)."""
        waits = [lag.seconds(self.now_ms) for lag in lags]
        return sum(lag.events for lag in lags), max((wait for wait in waits if wait is not None), default=None)

    # --- findings ------------------------------------------------------------------------------------------------

    @cached_property
    def findings(self) -> list[Finding]:
        """All findings, the worst first."""
        found = [
            *self._group_findings(),
            *(finding for member in self.last_seen_ms for finding in self._member_findings(member)),
        ]
        return sorted(
            found, key=lambda finding: (-finding.severity, bool(finding.partitions), -len(finding.partitions))
        )

    def partition_findings(self, partition: str) -> list[Finding]:
        """The findings about a partition or the whole group."""
        return [finding for finding in self.findings if partition in finding.partitions or not finding.partitions]

    def _group_findings(self) -> Iterator[Finding]:
        leases = self.snapshot.leases.values()
        if self.problem:
            yield Finding("table_unreadable", (), {"problem": self.problem})
        if leases and self.last_heartbeat_ms and not self._any_member_live:
            yield Finding("no_live_member", (), {"silence": (self.now_ms - self.last_heartbeat_ms) / 1000})
        yield from self._unowned([lease for lease in leases if lease.owner is None])
        yield from self._crash_loops()
        if stalled := [lease for lease in leases if lease.stall_count]:
            lags = [self.lags[lease.partition] for lease in stalled if lease.partition in self.lags]
            yield Finding("stalled", _ids(stalled), {"events": self.backlog(lags)[0]})
        names = defaultdict(list)
        for query in self.snapshot.queries.values():
            if query.run and self.now_ms - query.at_ms < _WINDOW_MS:
                names[query.owner].append(query.host)
        for member, hosts in names.items():
            if len(hosts) > 1:
                yield Finding("fenced", (), {"member": member, "hosts": sorted(hosts)})

    def _unowned(self, free: Sequence[Lease]) -> Iterator[Finding]:
        live = [member for member in self.members if self.is_live(member.id)]
        active = [member for member in live if member.state is MemberState.ACTIVE]
        if not free or not live:
            return
        limits, count = [member.max_owned for member in active], len(self.snapshot.leases)
        limit = sum(limit for limit in limits if limit is not None)
        if active and None not in limits and limit < count:
            yield Finding("limits_too_small", _ids(free), {"limit": limit, "count": count})
            return
        started = min(member.started_at_ms for member in active or live)
        patience_ms = _FREE_MS if active else _PATIENCE_MS  # a query that stops may still be in its last batch
        left = [lease for lease in free if self.now_ms - max(lease.renewed_at_ms, started) > patience_ms]
        if left:
            since = max(started, *(lease.renewed_at_ms for lease in left))
            code = "unowned" if active else "all_leaving"
            yield Finding(code, _ids(left), {"unowned": (self.now_ms - since) / 1000})

    def _crash_loops(self) -> Iterator[Finding]:
        """Findings for partitions that queries claim repeatedly without progress, although events may be unread."""
        takes, loops = defaultdict(list), defaultdict(list)
        for row in self.history:
            if row.partition is not None and row.event in _TAKES and 0 <= self.now_ms - row.at_ms <= _WINDOW_MS:
                takes[row.partition].append(row)
        for partition, rows in takes.items():
            lease, lag = self.snapshot.leases.get(partition), self.lags.get(partition)
            if lease is None or lease.checkpoint is None or lease.stall_count:
                continue  # a stall is reported as `stalled`
            if lag is not None and not lag.events and lag.at_ms > rows[-1].at_ms:
                continue  # all events have been read since the last claim
            number = lease.checkpoint.sequence_number
            stuck = [*takewhile(lambda row: row.sequence_number == number, reversed(rows))][::-1]  # noqa: B023
            given_back = sum(row.owner_before in (None, row.owner) for row in stuck)
            owners = {str(row.owner) for row in stuck}
            # At least one query claimed the partition again.
            if given_back > len(stuck) / 2 and len(stuck) >= max(_MANY, len(owners) + 1):
                loops[tuple(sorted(owners))].append((partition, stuck))
        for members, found in loops.items():
            rows = found[0][1]
            within = (rows[-1].at_ms - rows[0].at_ms) / 1000
            parameters = {"members": [*members], "times": len(rows), "within": within}
            yield Finding("crash_loop", tuple(partition for partition, _ in found), parameters)

    def _member_findings(self, id: str) -> Iterator[Finding]:
        leases, row = self.snapshot.owned_by(id), self.snapshot.members.get(id)
        if not leases:
            return
        if not self.is_live(id):
            if not self._any_member_live:
                return  # reported once, as `no_live_member`
            silence, duration = self.silence_ms(id) / 1000, self._durations.allowed_silence(id)
            yield Finding("stale_member", _ids(leases), {"member": id, "silence": silence, "duration": duration})
            return
        yield from self._not_reading(id, row, [lease for lease in leases if lease.handover is None])

    def _not_reading(self, id: str, row: Member | None, leases: Sequence[Lease]) -> Iterator[Finding]:
        query = None if row is None else self.snapshot.running_query(row)
        usual = row.load.batch_seconds if row is not None and row.load is not None else 0.0
        patience_ms = max(_PATIENCE_MS, _LONG_FACTOR * 1000 * usual)
        since = None if row is None else self.snapshot.in_batch_since_ms(row)
        if query is not None and since is not None and self.now_ms - since > patience_ms:
            ran = (self.now_ms - since) / 1000
            yield Finding("long_batch", _ids(leases), {"member": id, "batch": query.begun, "ran": ran})
            return
        measured = [lag.at_ms for lease in leases if (lag := lease.current_lag)]
        if query is not None and row is not None and measured:
            silence = (row.renewed_at_ms - max(measured)) / 1000
            if silence > self._durations.allowed_silence(id):
                yield Finding("hub_unreachable", _ids(leases), {"member": id, "silence": silence})
                return
        waiting = defaultdict(list)
        asked_ms = row.asked_ms if row is not None else None
        for lease in leases:
            events, waited = self.backlog([lag] if (lag := lease.current_lag) else [])
            if events and waited is not None and 1000 * waited > patience_ms and not lease.stall_count:
                starved = since is None and asked_ms is not None and self.now_ms - asked_ms > patience_ms
                reason = row.left_out.get(lease.partition) if row is not None else None
                waiting[reason or ("trigger" if starved else "")].append(lease)
        for reason, theirs in waiting.items():
            events, waited = self.backlog([lag for lease in theirs if (lag := lease.current_lag)])
            known = {"member": id, "events": events}
            if reason:
                yield Finding("paused", _ids(theirs), known | {"reason": reason})
            else:
                yield Finding("behind", _ids(theirs), known | {"waited": waited})

    # --- JSON ----------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The view for programs. Values that the store does not keep are null, times are in ISO 8601, rates are in
        events per second, and durations are in seconds, except for `commitMs`."""
        snapshot, (events, seconds) = self.snapshot, self.backlog(self.lags.values())
        return {
            "at": iso(self.now_ms),
            "namespace": snapshot.group.namespace,
            "eventHub": snapshot.group.hub,
            "consumerGroup": snapshot.group.consumer_group,
            "version": snapshot.version if self.keeps_members else None,
            "leader": snapshot.leader,
            "leaseDuration": _seconds(snapshot.lease_duration_ms),
            "lag": {"events": events, "seconds": seconds, "partitions": len(self.lags)} if self.lags else None,
            "findings": [finding.to_json() for finding in self.findings],
            "partitions": [self._partition_json(lease) for lease in snapshot.leases.values()],
            "members": [self._member_json(member) for member in self.members],
        }

    def _partition_json(self, lease: Lease) -> dict[str, Any]:
        lag = self.lags.get(lease.partition)
        return {
            "partition": lease.partition,
            "owner": lease.owner,
            "epoch": lease.epoch if self.keeps_members else None,
            "renewedAt": iso(lease.renewed_at_ms),
            "ownedSince": iso(lease.owned_since_ms) if self.keeps_members else None,
            "sequenceNumber": lease.checkpoint and lease.checkpoint.sequence_number,
            "nextOwner": lease.handover and lease.handover.to,
            "pin": lease.pin and asdict(lease.pin),
            "load": lease.load and asdict(lease.load),
            "lag": lag
            and {
                "next": lag.next,
                "end": lag.end,
                "events": lag.events,
                "seconds": lag.seconds(self.now_ms),
                "unreadSince": None if lag.unread_since_ms is None else iso(lag.unread_since_ms),
                "measuredAt": iso(lag.at_ms),
            },
        }

    def _member_json(self, member: Member) -> dict[str, Any]:
        known, load, since = member.joined > 0, member.load, self.snapshot.in_batch_since_ms(member)
        pins = [lease.partition for lease in self.snapshot.leases.values() if lease.pin and lease.pin.to == member.id]
        return {
            "member": member.id,
            "host": member.host if known else None,
            "state": member.state.value if known else None,
            "live": self.is_live(member.id),
            "strategy": member.strategy if known else None,
            "maxPartitionsOwned": member.max_owned,
            "startedAt": iso(member.started_at_ms) if known else None,
            "renewedAt": iso(member.renewed_at_ms),
            "partitions": [lease.partition for lease in self.snapshot.owned_by(member.id)],
            "pinned": pins,
            "load": load and {"rate": load.rate, "backlog": load.backlog, "batchSeconds": load.batch_seconds},
            "leaseDuration": _seconds(member.lease_duration_ms),
            "commitMs": member.commit_ms,
            "inBatchSince": None if since is None else iso(since),
        }


def _ids(leases: Sequence[Lease]) -> tuple[str, ...]:
    return tuple(lease.partition for lease in leases)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
