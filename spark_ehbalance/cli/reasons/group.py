"""What is wrong with a group as a whole, and what its history tells. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import takewhile

from spark_ehbalance.cli.reasons.facts import Facts
from spark_ehbalance.cli.reasons.findings import Finding, Severity, listed, partitions_text, span
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.values.position import partition_order

_WRONG, _WAITS, _NOTE = Severity.WRONG, Severity.WAITS, Severity.NOTE

#: Milliseconds within which so many claims of one partition are too many: a group that changes needs one or two.
_WINDOW_MS, _MANY = 600_000, 3

#: What changes the owner, in the history.
_TAKES = {"Claim", "Steal", "HandOver"}


def group(facts: Facts) -> Iterator[Finding]:
    """The findings about the group as a whole."""
    yield from _nobody(facts)
    yield from _mixed(facts)
    yield from _claimed_again(facts)
    if facts.hub is not None and facts.hub.problem:
        yield Finding(_WAITS, (), f"The event hub could not be asked from here: {facts.hub.problem}")


def _nobody(facts: Facts) -> Iterator[Finding]:
    """No member lives: all have ended, or rather the table cannot be written."""
    if facts.anybody_lives:
        return
    members = [*facts.snapshot.members]
    queries = sorted(facts.snapshot.queries.values(), key=lambda each: each.at_ms)
    text, do = "Nobody is in the group, so nothing is read.", ""
    if members:
        silence = span(min(map(facts.silence_ms, members)))
        text = (
            f"None of the {len(members)} members has written the lease table for {silence}: their processes have "
            "ended, or cannot write it. A query that cannot reads on what it owns, and what it has read since is not "
            "recorded."
        )
        logs = listed([facts.log(each) for each in members], "or", 3)
        do = f" If one runs, look for `What is owned is read on` in {logs}; `ehbalance check` tries the storage."
    elif queries:
        ago, last = span(facts.now_ms - queries[-1].at_ms), queries[-1]
        how = "was last heard of" if last.run else "gave back what it owned, and was last heard of"
        text += f" The last query, {facts.name(last.owner)}, {how} {ago} ago."
    yield Finding(
        _WRONG,
        tuple(facts.snapshot.leases),
        text,
        "When a query starts with this lease table, reading goes on after the last checkpoints.",
        f"Start one; with its Spark checkpoint it takes back what it owned.{do}",
    )


def _mixed(facts: Facts) -> Iterator[Finding]:
    strategies = defaultdict(list)
    for each in facts.active:
        strategies[each.strategy].append(each.id)
    if len(strategies) > 1:
        which = [f"{name or 'none named'} of {listed(ids)}" for name, ids in sorted(strategies.items())]
        yield Finding(
            _NOTE,
            (),
            f"The members have different strategies: {listed(which)}.",
            "All decide by `cooperative`, until the last one of the other strategies has left.",
        )


def _claimed_again(facts: Facts) -> Iterator[Finding]:
    """Crash loops, and partitions that change hands all the time."""
    takes = defaultdict(list)
    for each in facts.history:
        if each.partition is not None and each.event in _TAKES and 0 <= facts.now_ms - each.at_ms <= _WINDOW_MS:
            takes[each.partition].append(each)
    loops, flapping = defaultdict[tuple[str, ...], list[str]](list), list[str]()
    for partition in sorted(takes, key=partition_order):
        rows, stuck = takes[partition], _stuck(takes[partition])
        lease = facts.snapshot.leases.get(partition)
        free = sum(each.owner_before in (None, each.owner) for each in stuck)  # as who fails gives it back
        number = lease.checkpoint.sequence_number if lease is not None and lease.checkpoint else None
        still = lease is not None and number == rows[-1].sequence_number and facts.unread(lease)[0]
        if free >= _MANY and free > len(stuck) / 2 and still:
            rows = takes[partition] = stuck
        owners = tuple(sorted({each.owner for each in rows if each.owner is not None}))
        if len(rows) >= _MANY and (len(owners) == 1 or rows is stuck):
            loops[owners].append(partition)
        elif len(rows) > 2 * _MANY:
            flapping.append(partition)
    for owners, partitions in loops.items():
        yield _loop(facts, owners, tuple(partitions), takes[partitions[0]])
    if flapping:
        rows = takes[flapping[0]]
        names = list(dict.fromkeys(each.owner for each in rows if each.owner is not None))
        between = listed([facts.name(each) for each in names], "and", 4)
        yield Finding(
            _WAITS,
            tuple(flapping),
            f"P{partitions_text(flapping)[1:]} changed hands {len(rows)} times within "
            f"{span(facts.now_ms - rows[0].at_ms)}, between {between}.",
            do="Processes that are suspended, or too slow to renew, lose their leases again and again, and so do "
            "queries that start and end all the time: `ehbalance history` has each change.",
        )


def _stuck(rows: list[OwnershipChange]) -> list[OwnershipChange]:
    """The last ones, between which nothing was read."""
    return [*takewhile(lambda each: each.sequence_number == rows[-1].sequence_number, reversed(rows))][::-1]


def _loop(facts: Facts, owners: Sequence[str], partitions: tuple[str, ...], rows: list[OwnershipChange]) -> Finding:
    took, last = span(rows[-1].at_ms - rows[0].at_ms), span(facts.now_ms - rows[-1].at_ms)
    same = len({each.sequence_number for each in rows}) == 1
    number = rows[-1].sequence_number
    unread = any(facts.unread(lease)[0] for p in partitions if (lease := facts.snapshot.leases.get(p)))
    where = ""
    if same and number is not None:
        where = f", each time at the same sequence number{f' {number + 1}' if len(partitions) == 1 else 's'}"
    one = len(owners) == 1
    query, logs = "its query fails and is" if one else "their queries fail and are", map(facts.log, owners)
    names = f"{listed([*map(facts.name, owners)], 'and', 4)} {'has' if one else 'have'}"
    return Finding(
        _WRONG if where and unread else _WAITS,
        partitions,
        f"{names} taken {partitions_text(partitions)} {len(rows)} times within {took}, the last time {last} ago{where}"
        f": {query} started again and again.",
        "That goes on until its cause is gone."
        + (" If it is one of the next events, whoever reads them fails as well." if where else ""),
        f"The error is in {listed([*logs], 'and', 3)}: look for `spark_ehbalance.errors`, such as MalformedEventError "
        "of an event that cannot be read (the option onMalformed), or the sink's own. `ehbalance seek` leaves events "
        "out.",
    )
