"""What the page is told of a group, look after look."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from spark_ehbalance.dashboard.board import Board
from spark_ehbalance.dashboard.view import SEEN, Look, View
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.leases.model import Lease, Member, QueryRecord
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.lag import Lag
from spark_ehbalance.values.position import Position

T0 = 1_770_000_000_000
HOUR = 3_600_000


def change(at_ms: int, event: str, before: str | None, owner: str | None, epoch: int, **more: Any) -> OwnershipChange:
    return OwnershipChange(at_ms, "0", event, before, owner, epoch, None, owner or "", **more)


class Watched:
    """A view of a group, whose looks begin at `T0`."""

    def __init__(self) -> None:
        self.view = View()
        self.snapshot = Snapshot(Group("ns", "hub", "group"))

    def look(
        self, seconds: float, *leases: Lease, added: tuple[OwnershipChange, ...] = (), members: Iterable[str] = ()
    ) -> Any:
        rows = {each.partition: each for each in leases}
        joined = {id: Member(id, "x", at, renewed_at_ms=T0) for at, id in enumerate(members)} or self.snapshot.members
        self.snapshot = replace(self.snapshot, leases=MappingProxyType(rows or self.snapshot.leases), members=joined)
        sections = self.view.sections(Look(self.snapshot, added, T0 + round(1000 * seconds), seconds))
        return json.loads(json.dumps(sections))


def lanes(sections: Any) -> Any:
    return dict(sections["moves"]["lanes"])


def test_a_move_is_shown_at_once_and_gets_its_reason_from_the_history() -> None:
    group = Watched()
    ann = Lease("0", "ann", 1, owned_since_ms=T0 - 2 * HOUR)
    assert lanes(group.look(0, ann)) == {"0": [[0, None, "ann"]]}
    bob = Lease("0", "bob", 2, owned_since_ms=T0 + 1000)
    expected = {"0": [[0, T0 + 1000, "ann"], [T0 + 1000, None, "bob"]]}
    seen = group.look(2, bob)
    assert lanes(seen) == expected
    assert [each["event"] for each in seen["decisions"]] == [SEEN]
    recorded = group.look(3, added=(change(T0 + 1000, "HandOver", "ann", "bob", 2, why="ordered by ines"),))
    assert lanes(recorded) == expected
    assert [(each["event"], each["why"]) for each in recorded["decisions"]] == [("HandOver", "ordered by ines")]
    assert recorded["colours"] == [["ann", 0], ["bob", 1]]
    again = group.look(4, added=(change(T0 + 1000, "HandOver", "ann", "bob", 2, why="ordered by ines"),))
    assert again == recorded | {"lag": again["lag"]}, "a history that is read again adds nothing"


def test_a_partition_without_an_owner_has_a_gap() -> None:
    group = Watched()
    group.look(0, Lease("0", "ann", 1, owned_since_ms=T0 - 2 * HOUR))
    group.look(5, Lease("0", None, 1, owned_since_ms=T0 - 2 * HOUR))
    sections = group.look(9, Lease("0", "bob", 2, owned_since_ms=T0 + 9000))
    assert lanes(sections) == {"0": [[0, T0 + 5000, "ann"], [T0 + 9000, None, "bob"]]}


def test_a_group_that_is_older_than_the_server_is_shown_by_its_history() -> None:
    group, added = Watched(), (change(T0 - 60_000, "Claim", "ann", "bob", 2),)
    sections = group.look(0, Lease("0", "bob", 2, owned_since_ms=T0 - 60_000), added=added)
    assert lanes(sections) == {"0": [[0, T0 - 60_000, "ann"], [T0 - 60_000, None, "bob"]]}
    assert len(sections["decisions"]) == 1
    restarted = change(T0 + 1000, "Claim", "bob", "bob", 3)
    sections = group.look(2, Lease("0", "bob", 3, owned_since_ms=T0 - 60_000), added=(restarted,))
    assert lanes(sections)["0"][1:] == [[T0 - 60_000, None, "bob"]], "it was the owner all the time"


def test_what_is_older_than_an_hour_goes() -> None:
    group = Watched()
    ann = Lease("0", "ann", 1, owned_since_ms=T0 - 2 * HOUR, checkpoint=Position(4), lag=Lag(5, 9, T0 - 3000, T0))
    group.look(0, ann)
    bob = replace(ann, owner="bob", epoch=2, owned_since_ms=T0 + 1000)
    group.look(2, bob, added=(change(T0 + 1000, "HandOver", "ann", "bob", 2),))
    sections = group.look(3700, bob)
    assert lanes(sections) == {"0": [[0, None, "bob"]]}
    assert sections["decisions"] == []
    assert sections["colours"] == [["bob", 1]], "a colour stays"
    assert len(sections["lag"]["points"]) == 1
    assert sections["lagMinutes"]["partitions"] == [], "but for the minute that goes on"
    assert group.look(3701, bob, members="cd")["colours"] == [["bob", 1], ["c", 0], ["d", 2]]


def test_what_happened_to_several_partitions_at_once_is_one_row() -> None:
    group = Watched()
    moved = [replace(change(T0 + 10 * at, "Claim", None, "ann", 1), partition=str(at)) for at in (10, 2, 0)]
    leases = [Lease(str(at), "ann", 1, owned_since_ms=T0) for at in (0, 2, 10)]
    (row,) = group.look(1, *leases, added=tuple(moved))["decisions"]
    assert row["partitions"] == ["0", "2", "10"]


def test_orders_of_operators_are_marks_on_their_lanes() -> None:
    group = Watched()
    pin = replace(change(T0, "PinTo", "ann", "ann", 1, why="to ann: near its sink"), by="operator:me@here")
    drain = replace(pin, partition=None, event="Drain", epoch=None, why="its host is replaced")
    assert group.look(1, Lease("0", "ann", 1), added=(pin, drain))["moves"]["orders"] == [
        [T0, None, "Drain by operator:me@here: its host is replaced"],
        [T0, "0", "PinTo 0 by operator:me@here: to ann: near its sink"],
    ]


def test_of_a_batch_that_runs_it_is_told_since_when() -> None:
    group = Watched()
    began = QueryRecord("lineage", "x", "ann", batch=4, begun=5, at_ms=T0 - 90_000)
    group.snapshot = replace(group.snapshot, queries={"lineage": began})
    (shown,) = group.look(0, Lease("0", "ann", 1), members=["ann"])["group"]["members"]
    assert shown["batchSince"] == T0 - 90_000
    group.snapshot = replace(group.snapshot, queries={"lineage": replace(began, batch=5)})
    (shown,) = group.look(1)["group"]["members"]
    assert shown["batchSince"] is None


def test_lag_is_summed_and_what_was_not_measured_is_not_a_zero() -> None:
    group = Watched()
    none = group.look(0, Lease("0", "ann", 1), Lease("1", "ann", 1, checkpoint=Position(4)))
    assert (none["lag"]["points"], [each["lag"] for each in none["group"]["partitions"]]) == ([], [None, None])
    known = Lease("0", checkpoint=Position(4), lag=Lag(5, 9, T0 - 3000, T0))
    waiting = Lease("1", checkpoint=Position(4), lag=Lag(3, 5, T0 - 9000, T0))
    sections = group.look(1, known, waiting)
    assert [each[1:] for each in sections["lag"]["points"]] == [[4, 4.0]], "it reads on at 5: of the second all is read"
    later = group.look(61, known, Lease("1"))
    ((partition, points), (other, _)) = later["lagMinutes"]["partitions"]
    assert (partition, other, points[0][1:]) == ("0", "1", [4, 4.0])


def test_a_sign_of_life_is_dated_by_the_clock_of_who_sees_it() -> None:
    group = Watched()
    first = group.look(0, Lease("0"), members="a")
    assert first["group"]["members"][0]["seen"] == T0, "nothing else is known"
    member = replace(group.snapshot.members["a"], renewal=9, renewed_at_ms=T0 - HOUR)
    group.snapshot = replace(group.snapshot, members={"a": member})
    assert group.look(7)["group"]["members"][0]["seen"] == T0 + 7000
    assert group.look(9)["group"]["members"][0]["seen"] == T0 + 7000


def test_names_that_others_chose_are_shown_as_escapes() -> None:
    group, hostile = Watched(), "ann\x1b]0;owned\x07\u202e"
    order = replace(change(T0, "PinTo", hostile, hostile, 1, why=hostile), by=hostile)
    lease = Lease("0\x9b", hostile, 1, owned_since_ms=T0 - 9, checkpoint=Position(4), lag=Lag(5, 9, None, T0))
    group.look(0, lease, added=(order,), members=("a\x1b",))
    assert all(each.isprintable() for each in texts(group.look(61)))


def test_very_many_members_with_very_long_names_are_shown() -> None:
    found = Watched().look(0, members=[f"{number}{'x' * 50_000}" for number in range(2000)])
    assert sorted(number for _, number in found["colours"]) == [*range(2000)]
    assert max(len(each) for each in texts(found)) <= 1001


def texts(value: Any) -> list[str]:
    if isinstance(value, (dict, list)):
        return [text for each in (value.values() if isinstance(value, dict) else value) for text in texts(each)]
    return [value] if isinstance(value, str) else []


def test_viewers_get_what_has_changed_since_they_were_told_last() -> None:
    board, group = Board(["leases/a", "leases/b"]), Watched()
    board.show(1, group.look(0, Lease("0", "ann", 1)), T0)
    board.fail(0, "there is no lease table")
    seen, text = board.news(None)
    news = json.loads(text)
    assert [each["problem"] for each in news["groups"]] == ["there is no lease table", None]
    assert news["groups"][0]["sections"] == {}
    assert "group" in news["groups"][1]["sections"]
    board.show(1, group.look(1), T0 + 1000)
    seen, text = board.news(seen)
    told = json.loads(text)["groups"][1]
    assert (told["looked"], told["sections"]) == (T0 + 1000, {})
    board.show(1, group.look(2, Lease("0", "bob", 2)), T0 + 2000)
    told = json.loads(board.news(seen)[1])["groups"][1]
    assert {*told["sections"]} == {"colours", "decisions", "group", "moves"}
