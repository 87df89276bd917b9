"""Why partitions are not read: each fault that table, history and hub can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from spark_ehbalance.cli.reasons.answer import explain
from spark_ehbalance.cli.reasons.facts import Facts, HubFacts
from spark_ehbalance.cli.reasons.findings import Finding, Severity, listed, span
from spark_ehbalance.hub.metadata import PartitionState
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.model import (
    Handover,
    Lease,
    Member,
    MemberLoad,
    MemberState,
    Pin,
    QueryRecord,
    TableIdentity,
)
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.lag import Lag
from spark_ehbalance.values.position import Position

NOW = 1_770_000_000_000
WRONG, WAITS, NOTE = Severity.WRONG, Severity.WAITS, Severity.NOTE


def ago(seconds: float) -> int:
    return NOW - int(1000 * seconds)


def member(id: str, **values: Any) -> Member:
    row = Member(id, f"run-{id}", 1 if id == "ann" else 2, 9, ago(3), ago(3600), f"host-{id}", strategy="cooperative")
    load = MemberLoad(100.0, 0.0, 2.4)
    return replace(row, load=load, lease_duration_ms=30_000, asked_ms=ago(1), **values)


def query(id: str, **values: Any) -> QueryRecord:
    return replace(
        QueryRecord(f"lineage-{id}", f"run-{id}", id, batch=4, begun=4, at_ms=ago(2), host=f"host-{id}"), **values
    )


def lease(partition: str, owner: str | None, **values: Any) -> Lease:
    """Events 0 to 99 are read, and 100 to 119 are not, for a second."""
    lag = Lag(100, 120, ago(1), ago(5))
    return replace(Lease(partition, owner, 3, 17, ago(3), ago(600), Position(99), lag=lag), **values)


def late(partition: str, owner: str | None, **values: Any) -> Lease:
    """The same, for ten minutes."""
    return lease(partition, owner, lag=Lag(100, 120, ago(600), ago(5)), **values)


def facts(
    *leases: Lease,
    members: Sequence[Member] = (member("ann"), member("bob")),
    queries: Sequence[QueryRecord] = (query("ann"), query("bob")),
    history: Sequence[OwnershipChange] = (),
    **values: Any,
) -> Facts:
    """A group of Ann and Bob."""
    of = {
        "hub": values.pop("hub", None),
        "alive": values.pop("alive", frozenset()),
        "keeps_all": values.pop("all", True),
    }
    snapshot = Snapshot(
        Group.of("ns", "flights", "$Default"),
        7,
        {each.partition: each for each in leases},
        {each.id: each for each in members},
        TableIdentity("one", hub_created_ms=1),
        30_000,
        {each.lineage: each for each in queries},
    )
    return Facts(replace(snapshot, **values), NOW, history, **of)


def change(
    seconds: float, event: str, before: str | None, owner: str | None, at: int = 99, **more: Any
) -> OwnershipChange:
    """Of partition 0."""
    row = OwnershipChange(ago(seconds), "0", event, before, owner, 3, at, owner or before or "")
    return replace(row, **more)


def states(**ends: tuple[int, int]) -> Mapping[str, PartitionState]:
    enqueued = datetime.fromtimestamp(ago(60) / 1000, timezone.utc)
    return {partition[1:]: PartitionState(begin, end, None, enqueued) for partition, (begin, end) in ends.items()}


def only(known: Facts, partition: str | None = None) -> Finding:
    (found,) = explain(known, partition).findings
    return found


def test_nothing_is_wrong() -> None:
    answer = explain(facts(lease("0", "ann"), lease("1", "bob")))
    assert (answer.findings, answer.closing) == ((), "Nothing is wrong.")
    assert answer.state == (
        "ns/flights/$default: 2 of 2 partitions have a live owner, 2 members live; 40 events are unread, the oldest "
        "for 1 s."
    )
    one = explain(facts(lease("0", "ann")), "0")
    assert (one.findings, one.closing) == ((), "Nothing is wrong with partition 0.")
    assert one.state == (
        "ann (on host-ann) has owned partition 0 for 10 min; its lease was renewed 3 s ago. Reading goes on at "
        "sequence number 100; 20 events are unread, the oldest for 1 s (measured 5 s ago)."
    )


@pytest.mark.parametrize(
    ("known", "severity", "partitions", "texts"),
    [
        pytest.param(
            facts(lease("0", None), members=[], queries=[query("ann", run="", at_ms=ago(3661))]),
            WRONG,
            "0",
            ["Nobody is in the group", "The last query, ann (on host-ann), gave back what it owned", "1 h 1 min ago"],
            id="nobody at all",
        ),
        pytest.param(
            facts(
                late("0", "ann"),
                members=[member("ann"), member("bob")],
                queries=[query("ann", begun=5, at_ms=ago(252))],
            ),
            WRONG,
            "0",
            [
                "Batch 5 of ann (on host-ann) has been running for 4 min 12 s; its batches take 2.4 s",
                "maxStall",
                "Spark's UI",
            ],
            id="a batch that hangs",
        ),
        pytest.param(
            facts(
                late("0", "ann"),
                members=[replace(member("ann"), asked_ms=ago(601))],
                queries=[query("ann", at_ms=ago(300))],
            ),
            WRONG,
            "0",
            [
                "Spark has not asked ann (on host-ann) for a batch for 10 min 1 s",
                "trigger",
                "20 events are unread, the oldest for 10 min",
            ],
            id="a long trigger, or a driver that is suspended",
        ),
        pytest.param(
            facts(
                late("0", "ann"),
                members=[replace(member("ann"), asked_ms=None)],
                queries=[query("ann", at_ms=ago(300))],
            ),
            WRONG,
            "0",
            [
                "has begun no batch since batch 4, of which the table heard 5 min ago",
                "`Trying again every` in the driver's log of ann on host-ann",
            ],
            id="a member of an earlier version that begins no batch",
        ),
        *[
            pytest.param(
                facts(late("0", "ann"), lease("1", "ann"), members=[member("ann", left_out={"0": why})]),
                WAITS if why == "limit" else WRONG,
                "0",
                [f"leaves partition 0 out of its batches: {text}", "20 events are unread"],
                id=f"left out: {why}",
            )
            for why, text in (
                ("late", "it came after this run of Trigger.AvailableNow had begun"),
                ("state", "the event hub has not said yet"),
                ("position", "the event before its checkpoint is not found"),
                ("limit", "the query's maxEventsPerTrigger is used up"),
            )
        ],
        pytest.param(
            facts(late("0", "ann"), queries=[query("bob")]),
            WRONG,
            "0",
            ["its checkpoint stands", "It is a plain consumer", "the log of ann on host-ann"],
            id="a plain consumer that hangs",
        ),
        pytest.param(
            facts(late("0", "ann"), members=[], queries=[], all=False),
            WRONG,
            "0",
            ["a consumer of an Azure SDK", "Nobody takes them as long as it renews"],
            id="another SDK's consumer that reads nothing",
        ),
        pytest.param(facts(late("0", "ann")), WAITS, "0", ["reads partition 0, but is behind"], id="behind"),
        pytest.param(
            facts(
                lease("0", "ann", renewed_at_ms=ago(22)),
                members=[replace(member("ann"), renewed_at_ms=ago(22)), member("bob")],
            ),
            WAITS,
            "0",
            [
                "no sign of life for 22 s",
                "bob (on host-bob) takes it if that goes on for 8 s, when the lease duration of 30 s",
            ],
            id="an owner that was not heard of for a while",
        ),
        pytest.param(
            facts(
                lease("0", "ann", renewed_at_ms=ago(100)),
                lease("1", "ann", renewed_at_ms=ago(100)),
                members=[replace(member("ann"), renewed_at_ms=ago(100)), member("bob")],
            ),
            WRONG,
            "01",
            [
                "owns partitions 0 and 1 and has shown no sign of life for 1 min 40 s",
                "expired 1 min 10 s ago",
                "takes them within",
            ],
            id="an owner that is gone or frozen",
        ),
        pytest.param(
            facts(lease("0", "eve", renewed_at_ms=ago(40)), members=[member("bob", max_owned=0)]),
            WRONG,
            "0",
            ["eve owns partition 0", "Nobody takes it: all others have maxPartitionsOwned partitions"],
            id="nobody has room for what a dead member owns",
        ),
        pytest.param(
            facts(lease("0", "ann", renewed_at_ms=ago(99)), members=[replace(member("ann"), renewed_at_ms=ago(99))]),
            WRONG,
            "0",
            [
                "None of the 1 members has written the lease table for 1 min 39 s",
                "`What is owned is read on`",
                "is not recorded",
            ],
            id="nobody writes the table: all are gone, or progress cannot be committed",
        ),
        pytest.param(
            facts(
                lease("0", "ann", handover=Handover("bob", 30_000, ago(12))),
                queries=[query("ann", begun=5, at_ms=ago(14)), query("bob")],
            ),
            NOTE,
            "0",
            [
                "asked 12 s ago to hand partition 0 over to bob (on host-bob)",
                "when its batch ends, which has been running for 14 s",
                "bob takes it 18 s from now",
            ],
            id="a handover",
        ),
        pytest.param(
            facts(lease("0", "ann", handover=Handover("bob", 30_000, ago(45)))),
            WAITS,
            "0",
            ["The 30 s that it had for that were over 15 s ago", "bob (on host-bob) takes it"],
            id="a handover that is late",
        ),
        pytest.param(
            facts(lease("0", "ann", handover=Handover("eve", 30_000, ago(5)))),
            WAITS,
            "0",
            ["But eve is not a member any more", "The request is taken back"],
            id="a handover to a member that is gone",
        ),
        pytest.param(
            facts(
                lease("0", "ann"),
                members=[replace(member("ann"), state=MemberState.LEAVING), member("bob")],
                queries=[query("ann", begun=5, at_ms=ago(9))],
                history=[
                    OwnershipChange(ago(60), None, "Drain", "ann", "ann", None, None, "operator:jo", "its host goes"),
                ],
            ),
            WAITS,
            "0",
            [
                "ann (on host-ann) is leaving, as operator:jo ordered at 2026-02-02 02:39:00+00:00 (its host goes)",
                "when its batch ends, which has been running for 9 s",
                "bob (on host-bob) takes it then",
                "--undo",
            ],
            id="a member that is drained",
        ),
        pytest.param(
            facts(lease("0", "ann"), members=[replace(member("ann"), state=MemberState.LEAVING)]),
            WAITS,
            "0",
            [
                "is being stopped, or its batch has run for longer than maxStall",
                "Nobody takes it: nobody else is in the group",
            ],
            id="a member that leaves",
        ),
        pytest.param(
            facts(lease("0", "ann"), lease("1", None), members=[member("ann", max_owned=1)]),
            WRONG,
            "1",
            ["maxPartitionsOwned of the 1 queries comes to 1 in all, and there are 2 partitions"],
            id="limits that leave partitions unread",
        ),
        pytest.param(
            facts(lease("0", "ann"), lease("1", None)),
            WAITS,
            "1",
            [
                "Nobody has owned partition 1 for 3 s",
                "bob (on host-bob) or ann (on host-ann) takes it within a balanceInterval",
            ],
            id="a free partition",
        ),
        pytest.param(
            facts(lease("1", None, renewed_at_ms=ago(90))),
            WRONG,
            "1",
            ["Nobody has owned partition 1 for 1 min 30 s", "`Until that is over no partition is taken`"],
            id="a partition that nobody takes",
        ),
        pytest.param(
            facts(lease("1", None, renewed_at_ms=0)),
            WAITS,
            "1",
            ["Nobody owns partition 1, and"],
            id="one that was added",
        ),
        pytest.param(
            facts(lease("0", "ann"), hub=HubFacts(states(p0=(0, 110)))),
            WRONG,
            "0",
            ["the event hub ended at sequence number 120 before and 110 now", "waits in vain"],
            id="no event at an end that was promised",
        ),
        pytest.param(facts(Lease("1")), WAITS, "1", ["nobody has read it yet"], id="a partition that was never read"),
        pytest.param(
            facts(lease("0", "ann", pin=Pin("eve", "operator:jo", "nearer"))),
            NOTE,
            "0",
            [
                "should be with eve by a pin of operator:jo (nearer), which is not a member any more",
                "`ehbalance pin --remove`",
            ],
            id="a pin to a member that is gone",
        ),
        pytest.param(
            facts(
                lease("0", "ann", pin=Pin("bob", "operator:jo")),
                members=[member("ann"), member("bob", max_owned=0)],
            ),
            NOTE,
            "0",
            ["which owns maxPartitionsOwned=0 partitions already"],
            id="a pin to a member that is full",
        ),
        pytest.param(
            facts(lease("0", "ann"), members=[member("ann"), replace(member("bob"), strategy="greedy")]),
            NOTE,
            "",
            ["different strategies: cooperative of ann and greedy of bob", "All decide by `cooperative`"],
            id="mixed strategies",
        ),
        pytest.param(
            facts(lease("0", "ann"), history=[change(s, "Claim", "ann", "ann") for s in (200, 120, 40)]),
            WRONG,
            "0",
            [
                "has taken partition 0 3 times within 2 min 40 s, the last time 40 s ago, each time at the",
                "MalformedEventError",
                "the driver's log of ann on host-ann",
            ],
            id="a crash loop, as with an event that cannot be read",
        ),
        pytest.param(
            facts(
                lease("0", "ann"),
                history=[
                    change(300, "HandOver", "bob", "ann", at=60),
                    *[change(90 - 10 * n, "Claim", None, "ann" if n % 2 else "bob") for n in range(4)],
                ],
            ),
            WRONG,
            "0",
            [
                "ann (on host-ann) and bob (on host-bob) have taken partition 0 4 times within 30 s, the last time "
                "1 min ago, each time at the same sequence number 100: their queries fail",
                "the driver's log of ann on host-ann and the driver's log of bob on host-bob",
            ],
            id="two queries that fail at one event in turn",
        ),
        pytest.param(
            facts(lease("0", "ann", lag=Lag(100, 100, None, ago(43))), lease("1", "bob")),
            WAITS,
            "0",
            [
                "ann (on host-ann) renews partition 0, but had heard nothing of the event hub for 40 s then",
                "Trying again",
            ],
            id="a query that does not reach the hub",
        ),
        pytest.param(
            facts(
                lease("0", "ann", lag=Lag(100, 100, None, ago(300))),
                queries=[query("bob")],
                hub=HubFacts(states(p0=(0, 120))),
            ),
            NOTE,
            "0",
            ["20 events are unread, the oldest for at least 1 min of partition 0, of which ann (on host-ann)"],
            id="a consumer, which measures no lag",
        ),
        pytest.param(
            facts(
                lease("0", "bob"),
                members=[replace(member("ann"), state=MemberState.LEAVING), member("bob")],
                queries=[query("ann", begun=5, at_ms=ago(300)), query("bob")],
            ),
            NOTE,
            "",
            ["is leaving and owns nothing any more", "Its batch has been running for 5 min: others read that again."],
            id="a member that was drained during a batch that hangs",
        ),
        pytest.param(
            facts(
                lease("0", "ann"),
                history=[change(90 - 10 * n, "Claim", "bob", "ann" if n % 2 else "bob") for n in range(8)],
            ),
            WAITS,
            "0",
            ["Partition 0 changed hands 8 times within 1 min 30 s, between bob (on host-bob) and ann (on host-ann)"],
            id="a partition that changes hands all the time",
        ),
        pytest.param(
            facts(lease("0", "ann"), hub=HubFacts(states(p0=(0, 120), p1=(0, 5)))),
            WAITS,
            "1",
            ["The event hub has partition 1, and the lease table does not yet"],
            id="a partition that only the hub has",
        ),
        pytest.param(
            facts(lease("0", "ann"), lease("1", "ann"), hub=HubFacts(states(p0=(0, 120)))),
            WRONG,
            "1",
            ["The event hub does not have partition 1: it was made anew with fewer"],
            id="a partition that only the table has",
        ),
        pytest.param(
            facts(lease("0", "ann"), hub=HubFacts(states(p0=(0, 50)))),
            WRONG,
            "0",
            ["reading goes on beyond the end of the event hub, at sequence number 100 instead of 50", "DataLossError"],
            id="a position beyond the end",
        ),
        pytest.param(
            facts(lease("0", "ann"), hub=HubFacts(states(p0=(110, 120)))),
            WRONG,
            "0",
            ["events 100 to 109 were not read and are not in the event hub any more", "goes on at the first event"],
            id="a position before the first event",
        ),
        pytest.param(
            facts(lease("0", "ann"), hub=HubFacts(states(p0=(0, 120)), created_ms=2)),
            WRONG,
            "",
            ["The lease table: it has the positions of event hub flights of ns", "ehbalance seek"],
            id="another hub",
        ),
        pytest.param(
            facts(lease("0", "ann"), hub=HubFacts(states(p0=(0, 120)), levels={"0": 7})),
            WRONG,
            "0",
            [
                "owner level 7, and the lease's epoch is 3: a reader outside the group shuts ann (on host-ann) out",
                "ForeignReaderError",
            ],
            id="a foreign reader",
        ),
        pytest.param(
            facts(lease("0", "ann"), hub=HubFacts(problem="the name does not resolve")),
            WAITS,
            "",
            ["The event hub could not be asked from here: the name does not resolve"],
            id="a hub that does not answer",
        ),
    ],
)
def test_each_fault_is_told(known: Facts, severity: Severity, partitions: str, texts: Sequence[str]) -> None:
    found = only(known)
    assert (found.severity, found.partitions) == (severity, tuple(partitions))
    whole = f"{found.text}\n{found.next}\n{found.do}"
    assert [text for text in texts if text not in whole] == [], whole
    assert "  " not in whole
    closing = explain(known).closing
    assert (closing == "Nothing is wrong.") is (severity is NOTE)
    if partitions:
        asked = explain(known, partitions[0]) if partitions[0] in known.snapshot.leases else None
        assert asked is None or found in asked.findings


def test_the_worst_comes_first_and_the_rest_is_counted() -> None:
    known = facts(
        lease("0", "ann", handover=Handover("bob", 30_000, ago(1))),
        lease("1", "eve", renewed_at_ms=ago(50)),
        lease("2", "bob"),
        late("3", "ann"),
    )
    answer = explain(known)
    assert [each.severity for each in answer.findings] == [WRONG, WAITS, NOTE]
    assert answer.closing == "Nothing is wrong with the other 2 partitions."


def test_what_has_one_cause_is_said_once() -> None:
    leases = [lease(str(n), "ann", handover=Handover("bob", 30_000, ago(12)), pin=Pin("eve", "jo")) for n in range(64)]
    found = explain(facts(*leases, hub=HubFacts(states(**{f"p{n}": (110, 120) for n in range(64)})))).findings
    assert [len(each.partitions) for each in found] == [64, 64, 64]
    assert "hand partitions 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 53 more over to bob" in found[1].text


def test_who_renews_while_watched_lives_whatever_its_clock_says() -> None:
    slow = [replace(member("ann"), renewed_at_ms=ago(400))]
    known = facts(lease("0", "ann", renewed_at_ms=ago(400)), members=slow, alive=frozenset({"ann"}))
    assert explain(known).closing == "Nothing is wrong."


def test_foreign_is_who_has_a_higher_level_than_the_lease() -> None:
    hub = HubFacts(states(p0=(0, 120)), levels={"0": 3})
    assert explain(facts(lease("0", "ann"), hub=hub)).closing == "Nothing is wrong."


def test_who_reads_on_after_others_have_failed_is_not_said_to_fail() -> None:
    takes = [change(90 - 10 * n, "Claim", None, "ann" if n else "bob", at=50) for n in range(4)]
    assert explain(facts(lease("0", "bob"), history=takes)).closing == "Nothing is wrong."


def test_what_is_not_known_exactly_is_not_told_as_if_it_were() -> None:
    gone = [replace(member("ann"), renewed_at_ms=ago(99))]
    known = facts(lease("0", "ann", lag=Lag(100, 100, None, ago(98)), renewed_at_ms=ago(99)), members=gone)
    assert explain(known).state.endswith("; 0 events are unread (measured up to 1 min 38 s ago).")
    known = facts(lease("0", "ann", lag=None), lease("1", "ann"))
    assert explain(known).state.endswith(
        "; 20 events are unread, the oldest for 1 s, in the 1 of 2 partitions that tell."
    )
    known = facts(lease("0", "ann", lag=Lag(100, 100, None, ago(70))), hub=HubFacts(states(p0=(0, 120))))
    assert explain(known).state.endswith("; 20 events are unread, the oldest for at least 1 min.")
    rest = lease("1", "bob", lag=Lag(100, 100, None, ago(5)))
    known = facts(late("0", "ann"), rest, hub=HubFacts(states(p0=(0, 120), p1=(0, 101))))
    assert explain(known).state.endswith("; 21 events are unread, the oldest for 10 min.")


def test_what_the_hub_says_is_newer_than_what_was_measured() -> None:
    known = facts(lease("0", "ann", lag=None), hub=HubFacts(states(p0=(0, 100))))
    assert "Reading goes on at sequence number 100, the end: everything has been read." in explain(known, "0").state
    known = facts(lease("0", "ann"), hub=HubFacts(states(p0=(0, 103))))
    assert "; 3 events are unread, the oldest for 1 s." in explain(known, "0").state


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (change(5, "HandOver", "bob", "ann"), "bob handed it over to ann, whose share it belongs to"),
        (
            change(5, "HandOver", "bob", "ann", why="ordered by operator:jo: nearer"),
            "handed it over to ann, ordered by",
        ),
        (change(5, "Release", "bob", None), "bob gave it back, as it was ending or leaving"),
        (change(5, "Claim", None, "ann"), "ann took it, as nobody owned it"),
        (change(5, "Claim", "ann", "ann"), "ann took it back, as it was started again"),
        (change(5, "Claim", "bob", "ann", why="no sign of life for the lease duration"), "from bob: no sign of life"),
        (change(5, "Steal", "bob", "ann"), "ann took it from bob without asking"),
        (change(5, "Seek", "ann", "ann", by="operator:jo", why="to sequence number 2"), "operator:jo ordered Seek to"),
        (change(5, "PutBack", None, "ann"), "ann put it back, as somebody had removed it"),
    ],
)
def test_each_move_is_told(row: OwnershipChange, sentence: str) -> None:
    (move,) = explain(facts(lease("0", "ann"), history=[row]), "0").moves
    assert move.startswith("2026-02-02 02:39:55+00:00 (5 s ago): ")
    assert sentence in move


def test_why_earlier_events_were_not_read() -> None:
    first = change(600, "Claim", None, "ann", epoch=1, at=41)
    sought = change(60, "Seek", "ann", "ann", by="operator:jo", why="to sequence number 100: a bad release")
    assert (
        "Reading began at sequence number 42, by startingPosition"
        in explain(facts(lease("0", "ann"), history=[first]), "0").state
    )
    known = explain(facts(lease("0", "ann"), history=[first, sought]), "0").state
    assert "operator:jo moved it to sequence number 100: a bad release at 2026-02-02 02:39:00+00:00" in known


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (59.6, "1 min"),
        (252, "4 min 12 s"),
        (7260, "2 h 1 min"),
        (90_000, "1 day 1 h"),
        (604_800, "7 days"),
    ],
)
def test_times_are_said_in_two_units(seconds: float, text: str) -> None:
    assert span(1000 * seconds) == text


def test_many_names_are_counted() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"], "or") == "a, b or c"
    assert listed([str(n) for n in range(64)]) == "0, 1, 2, 3, 4 and 59 more"
