"""The answer of `ehbalance explain`: from facts to sentences. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spark_ehbalance.cli.reasons.facts import Facts
from spark_ehbalance.cli.reasons.findings import Finding, Severity, span
from spark_ehbalance.cli.reasons.group import group
from spark_ehbalance.cli.reasons.members import members
from spark_ehbalance.cli.reasons.moves import moves
from spark_ehbalance.cli.reasons.partitions import first_read, partitions, read_up
from spark_ehbalance.leases.model import Lease


@dataclass(frozen=True, slots=True)
class Answer:
    """`state` is how things are, `findings` what is wrong, the worst first, `closing` what is not, and `moves` the last
    changes of the partition that was asked about."""

    state: str
    findings: tuple[Finding, ...]
    closing: str
    moves: tuple[str, ...] = ()


def explain(facts: Facts, partition: str | None = None) -> Answer:
    """What is wrong in the group, or with one of its partitions."""
    found = sorted(
        [*group(facts), *partitions(facts), *members(facts)], key=lambda each: (-each.severity, -len(each.partitions))
    )
    if partition is None:
        return Answer(_group_state(facts), tuple(found), _closing(facts, found))
    lease = facts.snapshot.leases.get(partition)
    found = [each for each in found if partition in each.partitions or not each.partitions]
    if lease is None:
        return Answer(f"The lease table does not have partition {partition}.", tuple(found), "")
    wrong = any(each.severity > Severity.NOTE for each in found)
    closing = "" if wrong else f"Nothing is wrong with partition {partition}."
    return Answer(_state(facts, lease), tuple(found), closing, tuple(moves(facts, partition)))


def _group_state(facts: Facts) -> str:
    leases, live = facts.snapshot.leases, [each for each in facts.last_seen_ms if facts.live(each)]
    owned = sum(each.owner in live for each in leases.values())
    text = f"{facts.snapshot.group}: {owned} of {len(leases)} partitions have a live owner, {len(live)} members live"
    told = facts.hub is not None and not facts.hub.problem
    ages = [facts.now_ms - lag.at_ms for each in leases.values() if (lag := each.behind)]
    some = f", in the {len(ages)} of {len(leases)} partitions that tell" if len(ages) < len(leases) else ""
    old = f" (measured up to {span(max(ages))} ago)" if max(ages, default=0) > facts.duration_ms(None) else ""
    return f"{text}; {facts.unread_text(leases.values())}{'' if told else some + old}."


def _closing(facts: Facts, found: list[Finding]) -> str:
    wrong = [each for each in found if each.severity > Severity.NOTE]
    if not wrong:
        return "Nothing is wrong."
    concerned = {partition for each in wrong for partition in each.partitions}
    rest = sum(each not in concerned for each in facts.snapshot.leases)
    return f"Nothing is wrong with the other {rest} partitions." if rest and concerned else ""


def _state(facts: Facts, lease: Lease) -> str:
    parts = [f"Partition {lease.partition} has no owner."]
    if lease.owner is not None:
        known = facts.keeps_all and lease.owned_since_ms
        owned = f" for {span(facts.now_ms - lease.owned_since_ms)}" if known else ""
        renewed = f"its lease was renewed {span(facts.now_ms - lease.renewed_at_ms)} ago"
        parts = [f"{facts.name(lease.owner)} has owned partition {lease.partition}{owned}; {renewed}."]
        if (ran := facts.in_batch_ms(lease.owner)) is not None:
            record = facts.record(lease.owner)
            parts.append(f"Its batch {record.begun if record else ''} has been running for {span(ran)}.")
    parts += [read_up(facts, lease), first_read(facts, lease)]
    return " ".join(filter(None, parts))
