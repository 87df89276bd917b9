"""What is wrong with single partitions, whoever owns them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from spark_ehbalance.cli.reasons.facts import Facts, HubFacts
from spark_ehbalance.cli.reasons.findings import Finding, Severity, listed, partitions_text, span, them
from spark_ehbalance.leases.model import Handover, Lease, MemberState, Pin
from spark_ehbalance.leases.snapshot import OTHER_HUB_HELP
from spark_ehbalance.text import time_of
from spark_ehbalance.values.position import partition_order

_WRONG, _WAITS, _NOTE = Severity.WRONG, Severity.WAITS, Severity.NOTE

#: Milliseconds for which a partition is without an owner before that is said: two balance intervals.
_FREE_MS = 20_000


def partitions(facts: Facts) -> Iterator[Finding]:
    """The findings about partitions without an owner, in handover, pinned, or of which the event hub says something
    else than the table."""
    yield from _free(facts)
    handovers, pins = defaultdict(list), defaultdict(list)
    for lease in facts.snapshot.leases.values():
        if lease.handover is not None and lease.owner is not None:
            ordered = lease.pin is not None and lease.pin.to == lease.handover.to
            handovers[lease.owner, lease.handover, lease.pin if ordered else None].append(lease)
        if lease.pin is not None and lease.owner != lease.pin.to:
            pins[lease.pin].append(lease)
    for (owner, handover, pin), leases in handovers.items():
        yield _handover(facts, owner, handover, pin, leases)
    for pin, leases in pins.items():
        yield from _pin(facts, pin, leases)
    if facts.hub is not None and not facts.hub.problem:
        yield from _hub(facts, facts.hub)


def _ids(leases: Sequence[Lease]) -> tuple[str, ...]:
    return tuple(each.partition for each in leases)


def _free(facts: Facts) -> Iterator[Finding]:
    free = [each for each in facts.snapshot.leases.values() if each.owner is None]
    if not free or not facts.active:
        return  # that there is nobody is said by another rule
    ids, limits = _ids(free), [each.max_owned for each in facts.active]
    room = sum(each for each in limits if each is not None)
    if None not in limits and room < len(facts.snapshot.leases):
        yield Finding(
            _WRONG,
            ids,
            f"Nobody owns {partitions_text(ids)}: maxPartitionsOwned of the {len(limits)} queries comes to {room} in "
            f"all, and there are {len(facts.snapshot.leases)} partitions.",
            "Their events wait in the event hub, as long as it retains them.",
            "Raise maxPartitionsOwned, or start another query.",
        )
        return
    new = [each for each in free if each.checkpoint is None or not each.renewed_at_ms]  # 0: added, or restored
    if new:
        text = f"Nobody owns {partitions_text(_ids(new))}, and nobody has read {them(new)} yet."
        yield Finding(_WAITS, _ids(new), text, facts.taken_by(new))
    if left := [each for each in free if each not in new]:
        since = facts.now_ms - max(each.renewed_at_ms for each in left)
        logs = listed([facts.log(each.id) for each in facts.active], "or", 3)
        yield Finding(
            _WRONG if since > _FREE_MS else _WAITS,
            _ids(left),
            f"Nobody has owned {partitions_text(_ids(left))} for {span(since)}.",
            facts.taken_by(left),
            f"That should have happened: look for `Until that is over no partition is taken` in {logs}; with "
            "EHBALANCE_LOG_LEVEL=INFO lines with `balance:` say why."
            if since > _FREE_MS
            else "",
        )


def _handover(facts: Facts, owner: str, handover: Handover, order: Pin | None, leases: Sequence[Lease]) -> Finding:
    ids, it, to = _ids(leases), them(leases), facts.name(handover.to)
    asked = facts.now_ms - handover.requested_at_ms if handover.requested_at_ms else 0
    left, timeout = handover.timeout_ms - asked, span(handover.timeout_ms)
    by = f", as {order.by} has ordered" if order is not None else ""
    text = (
        f"{facts.name(owner)} was asked {span(asked)} ago to hand {partitions_text(ids)} over to {to}{by}. It plans no "
        f"new batch with {it}."
    )
    if gone := _absent(facts, handover.to):
        reads_on = f"The request is taken back at the next decision of a member, and {owner} reads on."
        return Finding(_WAITS, ids, f"{text} But {to} {gone}.", reads_on)
    if left > 0:
        ran = facts.in_batch_ms(owner)
        batch = "within a second if there is none" if ran is None else f"which has been running for {span(ran)}"
        forced = f"Otherwise {handover.to} takes {it} {span(left)} from now, when {timeout} are over"
        then = f"It hands {it} over when its batch ends, {batch}. {forced}, and the batch in flight is read again."
        return Finding(_NOTE, ids, text, then)
    return Finding(
        _WAITS,
        ids,
        f"{text} The {timeout} that it had for that were over {span(-left)} ago.",
        f"{to} takes {it} at its next decision, within a balanceInterval, and the batch in flight is read again.",
        f"If it does not: look for `balance:` (EHBALANCE_LOG_LEVEL=INFO) in {facts.log(handover.to)}.",
    )


def _absent(facts: Facts, member: str) -> str:
    """Why the member takes no partition, as the rest of a sentence; nothing if it does."""
    row = facts.snapshot.members.get(member)
    if row is None:
        return "is not a member any more"
    return "is silent" if not facts.live(member) else "is leaving" if row.state is MemberState.LEAVING else ""


def _pin(facts: Facts, pin: Pin, leases: Sequence[Lease]) -> Iterator[Finding]:
    order = f"{'a transfer' if pin.transfer else 'a pin'} of {pin.by}{f' ({pin.why})' if pin.why else ''}"
    ids, absent = _ids(leases), _absent(facts, pin.to)
    text = f"P{partitions_text(ids)[1:]} should be with {facts.name(pin.to)} by {order}, which"
    if absent:
        then = "A member removes the order." if pin.transfer else f"When it is back, it gets {them(leases)} back."
        do = "" if pin.transfer else "If it does not come back: `ehbalance pin --remove`."
        yield Finding(_NOTE, ids, f"{text} {absent}. Meanwhile the order binds nobody.", then, do)
        return
    limit = facts.snapshot.members[pin.to].max_owned
    if limit is not None and len(facts.snapshot.owned_by(pin.to)) >= limit:
        then = f"It takes {them(leases)} once it has room; until then others may."
        yield Finding(_NOTE, ids, f"{text} owns maxPartitionsOwned={limit} partitions already.", then)


def _hub(facts: Facts, hub: HubFacts) -> Iterator[Finding]:
    leases = facts.snapshot.leases
    if other := facts.snapshot.described_other_hub(hub.created_ms):
        yield Finding(_WRONG, (), f"The lease table: {other}.", "Queries fail, and do not start.", OTHER_HUB_HELP)
        return
    if facts.keeps_all and (added := sorted(hub.states.keys() - leases.keys(), key=partition_order)):
        yield Finding(
            _WAITS,
            tuple(added),
            f"The event hub has {partitions_text(added)}, and the lease table does not yet.",
            "The members add and read them from the first event, within a balanceInterval and the time of a commit."
            if facts.active
            else "The next query adds them.",
        )
    if gone := [each for each in leases if each not in hub.states]:
        yield Finding(
            _WRONG,
            tuple(gone),
            f"The event hub does not have {partitions_text(gone)}: it was made anew with fewer, or is another one.",
            "There is nothing to read.",
            "If it is the right event hub: a new leaseTable and new checkpoints.",
        )
    yield from _gone(leases.values(), hub)
    for partition, level in hub.levels.items():
        lease = leases.get(partition)
        if lease is not None and lease.owner is not None and level > lease.epoch and facts.keeps_all:
            yield Finding(
                _WRONG,
                (partition,),
                f"Partition {partition}: somebody reads it in this consumer group with owner level {level}, and the "
                f"lease's epoch is {lease.epoch}: a reader outside the group shuts {facts.name(lease.owner)} out.",
                "The batch waits for it for 90 s, and then fails with ForeignReaderError.",
                "Stop that reader, or give it another consumer group, or let it share the lease table.",
            )


def _gone(leases: Iterable[Lease], hub: HubFacts) -> Iterator[Finding]:
    """Positions at which the hub has no events to go on with."""
    placed = [
        (each, each.checkpoint.next, hub.states[each.partition])
        for each in leases
        if each.checkpoint is not None and each.partition in hub.states
    ]
    fails = "With failOnDataLoss, the default, a query that reads there fails with DataLossError; without"
    if beyond := [(lease, f"{at} instead of {state.end}") for lease, at, state in placed if at > state.end]:
        ids = _ids([lease for lease, _ in beyond])
        yield Finding(
            _WRONG,
            ids,
            f"P{partitions_text(ids)[1:]}: reading goes on beyond the end of the event hub, at sequence number "
            f"{listed([text for _, text in beyond], most=3)}: it was made anew, or was promoted and has lost events.",
            f"{fails}, it goes on at the nearest event.",
            "Set a position that exists with `ehbalance seek`, or see docs/operations.md, The hub lost events.",
        )
    promised = [(lease, lease.lag.end, state.end) for lease, at, state in placed if lease.lag and at <= state.end]
    if shrunk := [(lease, f"{end} before and {now} now") for lease, end, now in promised if end > now]:
        ids, ends = _ids([lease for lease, _ in shrunk]), listed([text for _, text in shrunk], most=3)
        yield Finding(
            _WRONG,
            ids,
            f"P{partitions_text(ids)[1:]}: the event hub ended at sequence number {ends}: it was made anew, or was "
            "promoted and has lost events. A batch that was to read them waits in vain.",
            f"{fails}, it goes on at the next event, in that batch after receiverTimeout at the latest.",
            "See docs/operations.md, The hub lost events.",
        )
    if aged := [(lease, f"{at} to {state.begin - 1}") for lease, at, state in placed if at < state.begin]:
        ids = _ids([lease for lease, _ in aged])
        yield Finding(
            _WRONG,
            ids,
            f"P{partitions_text(ids)[1:]}: events {listed([text for _, text in aged], most=3)} were not read "
            "and are not in the event hub any more: they were retained for too short a time.",
            f"{fails}, it goes on at the first event that is there.",
            "`ehbalance seek` goes on behind the gap; a longer retention, or more queries, avoid the next one.",
        )


def read_up(facts: Facts, lease: Lease) -> str:
    """Where reading of the partition stands, as a sentence."""
    if lease.checkpoint is None:
        return "Nobody has read it yet."
    events, _ = facts.unread(lease)
    told = facts.hub is not None and lease.partition in facts.hub.states
    lag = lease.behind
    text = f"Reading goes on at sequence number {lease.checkpoint.next}"
    if not told and lag is None:
        return f"{text}; what is unread is not known."
    measured = "" if told or lag is None else f" (measured {span(facts.now_ms - lag.at_ms)} ago)"
    if not events:
        return f"{text}, the end: everything has been read{measured}."
    return f"{text}; {facts.unread_text([lease])}{measured}."


def first_read(facts: Facts, lease: Lease) -> str:
    """Why earlier events were not read, if the history knows: a sentence, or nothing."""
    rows = [each for each in facts.history if each.partition == lease.partition]
    sought = [each for each in rows if each.event == "Seek"]
    if sought:
        order = sought[-1]
        return f"{order.by} moved it {order.why} at {time_of(order.at_ms)}: what was passed over is not read."
    if rows and rows[0].epoch == 1 and rows[0].sequence_number is not None and rows[0].sequence_number >= 0:
        return (
            f"Reading began at sequence number {rows[0].sequence_number + 1}, by startingPosition, when "
            f"{rows[0].owner} took it first at {time_of(rows[0].at_ms)}: what was before is not read."
        )
    return ""
