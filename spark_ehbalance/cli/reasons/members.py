"""What is wrong with a member, and so with all partitions that it owns. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_ehbalance.cli.reasons.facts import Facts
from spark_ehbalance.cli.reasons.findings import Finding, Severity, partitions_text, span, them
from spark_ehbalance.leases.model import Lease, MemberState
from spark_ehbalance.text import time_of

_WRONG, _WAITS, _NOTE = Severity.WRONG, Severity.WAITS, Severity.NOTE

#: Milliseconds without a request from Spark that are more than most trigger intervals.
_LONG_TRIGGER_MS = 600_000

#: Why a planner leaves a partition out of its batches (`Member.left_out`): what, and what to do.
_LEFT_OUT = {
    "late": (
        "it came after this run of Trigger.AvailableNow had begun, which reads what the query owned then",
        "Nothing: the next run reads it, or who takes it when this one ends.",
    ),
    "state": (
        "the event hub has not said yet which events it has",
        "Look for `Trying again every` in {log}: while it is there, the driver does not reach the event hub. With very "
        "many partitions the first answers take seconds.",
    ),
    "position": (
        "the event before its checkpoint is not found in the event hub, which was promoted or does not answer",
        "Look for `cannot find out` and `is not read until this succeeds` in {log}.",
    ),
    "limit": (
        "the query's maxEventsPerTrigger is used up by other partitions, as it is smaller than what is unread",
        "Raise maxEventsPerTrigger: below the number of partitions with unread events some are left out of each batch.",
    ),
}


def members(facts: Facts) -> Iterator[Finding]:
    """The findings about each owner, and about members that are leaving."""
    owners = {each.owner: None for each in facts.snapshot.leases.values() if each.owner is not None}
    for member in {**dict.fromkeys(facts.snapshot.members), **owners}:
        leases = facts.snapshot.owned_by(member)
        if facts.late(member):
            if leases and facts.anybody_lives:  # nothing else waits for it; if nobody lives, that is said already
                yield _silent(facts, member, leases)
            continue
        yield from _leaving(facts, member, leases)
        if leases:
            yield from _not_reading(facts, member, leases)


def _ids(leases: Sequence[Lease]) -> tuple[str, ...]:
    return tuple(each.partition for each in leases)


def _silent(facts: Facts, member: str, leases: Sequence[Lease]) -> Finding:
    """No sign of life: the process is gone, or is frozen, or cannot write the table."""
    silence, duration, ids = facts.silence_ms(member), facts.duration_ms(member), _ids(leases)
    text = f"{facts.name(member)} owns {partitions_text(ids)} and has shown no sign of life for {span(silence)}: "
    text += "its process is gone or frozen, or cannot write the lease table."
    do = (
        "Look whether its process runs on its host, and is not suspended; and for `What is owned is read on` in "
        f"{facts.log(member)}: then it does not reach the lease table."
    )
    if silence <= duration:
        over = f"if that goes on for {span(duration - silence)}, when the lease duration of {span(duration)} is over"
        return Finding(_WAITS, ids, text, facts.taken_by(leases, over), do)
    text += f" The leases expired {span(silence - duration)} ago, after the lease duration of {span(duration)}."
    again = "Reading goes on after the last checkpoint: what came after it and was read is read again."
    return Finding(_WRONG, ids, text, f"{facts.taken_by(leases)} {again}", do)


def _leaving(facts: Facts, member: str, leases: Sequence[Lease]) -> Iterator[Finding]:
    row = facts.snapshot.members.get(member)
    if row is None or row.state is not MemberState.LEAVING:
        return
    name, ids, ran = facts.name(member), _ids(leases), facts.in_batch_ms(member)
    drains = [each for each in facts.history if each.event == "Drain" and each.owner == member]
    if drains and row.started_at_ms <= drains[-1].at_ms:
        why = f", as {drains[-1].by} ordered at {time_of(drains[-1].at_ms)}"
        why += f" ({drains[-1].why})" if drains[-1].why else ""
        do = f"`ehbalance drain --undo` lets {member} take partitions again."
    else:
        why = ": it is being stopped, or its batch has run for longer than maxStall"
        do = f"Look for `longer than maxStall` in {facts.log(member)}."
    if not leases:
        text = f"{name} is leaving and owns nothing any more{why}."
        if ran is not None and ran > facts.patience_ms(member):
            text += f" Its batch has been running for {span(ran)}: others read that again."
        yield Finding(_NOTE, (), text, "It takes no partitions.", do)
        return
    when = "at once" if ran is None else f"when its batch ends, which has been running for {span(ran)}"
    yield Finding(
        _WAITS,
        ids,
        f"{name} is leaving{why}. It plans no new batch with {partitions_text(ids)}.",
        f"It gives {them(ids)} back {when}. {facts.taken_by(leases, 'then')}",
        do,
    )


def _not_reading(facts: Facts, member: str, leases: Sequence[Lease]) -> Iterator[Finding]:
    """It lives, and does not read what it owns, or too slowly."""
    row, name, ran = facts.snapshot.members.get(member), facts.name(member), facts.in_batch_ms(member)
    if ran is not None and ran > facts.patience_ms(member):
        yield _long_batch(facts, member, leases, ran)
        return
    measured = [lag.at_ms for each in leases if (lag := each.behind)]
    if (
        measured
        and facts.record(member)
        and (old := facts.last_seen_ms[member] - max(measured)) > facts.duration_ms(member)
    ):
        yield _deaf(facts, member, leases, old)
        return
    left_out = row.left_out if row else {}
    standing = [each for each in leases if facts.stands(each)]
    for why, (text, do) in _LEFT_OUT.items():
        out = [each for each in standing if left_out.get(each.partition) == why]
        if out:
            yield Finding(
                _WAITS if why == "limit" else _WRONG,
                _ids(out),
                f"{name} leaves {partitions_text(_ids(out))} out of its batches: {text}. {facts.unread_text(out)}.",
                do=do.format(log=facts.log(member)),
            )
    if facts.record(member) is None and (unknown := [each for each in leases if facts.unread(each)[0]]):
        yield from _unmeasured(facts, member, [each for each in unknown if each not in standing])
    standing = [each for each in standing if each.partition not in left_out and each.handover is None]
    if standing and (row is None or row.state is MemberState.ACTIVE):
        yield _stands(facts, member, standing)


def _long_batch(facts: Facts, member: str, leases: Sequence[Lease], ran: int) -> Finding:
    mean, record = facts.batch_ms(member), facts.record(member)
    assert record is not None, "it is in a batch"
    usual = f"; its batches take {mean / 1000:.1f} s on average" if mean else ""
    return Finding(
        _WRONG if any(map(facts.stands, leases)) else _WAITS,
        _ids(leases),
        f"Batch {record.begun} of {facts.name(member)} has been running for {span(ran)}{usual}. Before it ends nothing "
        f"else of {partitions_text(_ids(leases))} is read.",
        "Nobody takes them meanwhile, except by a handover, as the leases are renewed all the same: that ends with the "
        "batch, with the query, or, if it is set, after maxStall.",
        "See in Spark's UI whether a task or the sink hangs, or no core is free. Executors' logs: `of which none has "
        "come for` (the partition sends nothing, or they do not reach the event hub), `has it, not the lease's owner` "
        "(a reader outside the group). With a trigger interval and without spark_ehbalance.register(spark) it may have "
        "ended: that is known at the next trigger.",
    )


def _deaf(facts: Facts, member: str, leases: Sequence[Lease], old: int) -> Finding:
    return Finding(
        _WAITS,
        _ids(leases),
        f"{facts.name(member)} renews {partitions_text(_ids(leases))}, but had heard nothing of the event hub for "
        f"{span(old)} then: what is unread is not known.",
        "A query that does not reach it fails after receiverTimeout.",
        f"Look for `Trying again every` and `too busy` in {facts.log(member)}; `ehbalance check` tries the event hub.",
    )


def _unmeasured(facts: Facts, member: str, leases: Sequence[Lease]) -> Iterator[Finding]:
    """What a consumer owns, which measures no lag: the hub tells what is unread, and not for how long."""
    ids = _ids([each for each in leases if not facts.exact(each)])
    if ids:
        yield Finding(
            _NOTE,
            ids,
            f"{facts.unread_text([facts.snapshot.leases[each] for each in ids])} of {partitions_text(ids)}, of which "
            f"{facts.name(member)} measures no lag, as it is no query.",
            do="Ask again: if that only rises, what handles its events hangs, fails, or makes no checkpoints.",
        )


def _stands(facts: Facts, member: str, leases: Sequence[Lease]) -> Finding:
    row, name, record, ids = facts.snapshot.members.get(member), facts.name(member), facts.record(member), _ids(leases)
    unread = f"{facts.unread_text(leases)}."
    if not facts.keeps_all or row is None or record is None:
        kind = "a plain consumer" if facts.keeps_all else "a consumer of an Azure SDK, or a query"
        return Finding(
            _WRONG,
            ids,
            f"{name} owns {partitions_text(ids)} and renews, but its checkpoint stands. {unread} It is {kind}: what "
            "handles its events hangs, fails, or makes no checkpoints.",
            "Nobody takes them as long as it renews.",
            f"Look into {facts.log(member)}, and start it again.",
        )
    asked = None if row.asked_ms is None else facts.now_ms - row.asked_ms
    in_batch = facts.in_batch_ms(member)
    if in_batch is None and asked is not None and asked > facts.patience_ms(member):
        return Finding(
            _WRONG if asked > _LONG_TRIGGER_MS else _WAITS,
            ids,
            f"Spark has not asked {name} for a batch for {span(asked)}, so nothing of {partitions_text(ids)} is "
            f"planned. {unread}",
            "They are read at the next trigger. Nobody takes them meanwhile, as the leases are renewed all the same.",
            "A long trigger interval; or a driver that is suspended, starved or collects garbage: look at "
            "`query.status` and at the driver's machine.",
        )
    heard = facts.now_ms - record.at_ms
    if in_batch is None and asked is None and heard > facts.patience_ms(member):
        return Finding(
            _WRONG,
            ids,
            f"{name} owns {partitions_text(ids)} and has begun no batch since batch {record.begun}, of which the table "
            f"heard {span(heard)} ago. {unread}",
            do="`query.status` tells whether Spark waits for a trigger; look for `are owned and not read` and `Trying "
            f"again every` in {facts.log(member)}.",
        )
    return Finding(
        _WAITS,
        ids,
        f"{name} reads {partitions_text(ids)}, but is behind. {unread}",
        do="If that does not become less: more queries or cores, larger batches, or a faster sink "
        "(docs/performance.md).",
    )
