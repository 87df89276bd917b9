"""A made-up group that has run for an hour: four queries, of which one has crashed, and an operator's orders.

`python -m tests.dashboard.made_up` shows it, and with `difficult` groups that are hard to draw.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from spark_ehbalance.dashboard.board import Board
from spark_ehbalance.dashboard.server import listening, serve
from spark_ehbalance.dashboard.view import Look, View
from spark_ehbalance.leases.history import OwnershipChange, ownership_changes
from spark_ehbalance.leases.model import Author, Load, MemberLoad
from spark_ehbalance.leases.orders import PinTo
from spark_ehbalance.leases.snapshot import Snapshot
from spark_ehbalance.leases.transitions import (
    AddPartitions,
    Claim,
    Forget,
    HandOver,
    Join,
    RequestHandover,
    SetLeaseDuration,
    Transition,
    apply,
)
from spark_ehbalance.values.group import Group
from spark_ehbalance.values.lag import Lag
from spark_ehbalance.values.position import Position

GROUP = Group("contoso-trading.servicebus.windows.net", "orders", "billing")

#: When it is shown, in milliseconds since 1970: always the same time, so that pictures of it do not change.
NOW = 1_770_000_000_000

_OPERATOR = Author("operator:ines@bastion", "")
_RATES = {"orders-eu-1": 5200.0, "orders-eu-2": 5400.0, "orders-spot-1": 3100.0, "orders-spot-2": 3300.0}


@dataclass(frozen=True)
class Step:
    """What happens at `minute`: partitions change hands, or a member comes."""

    minute: float
    event: str
    who: str
    partitions: tuple[int, ...] = ()


def _steps(partitions: int) -> tuple[Step, ...]:
    quarter = partitions // 4
    quarters = [tuple(range(at * quarter, (at + 1) * quarter)) for at in range(4)]
    last = quarters[3]
    return (
        Step(2, "join", "orders-eu-1"),
        Step(2, "claim", "orders-eu-1", tuple(range(2 * quarter))),
        Step(2, "join", "orders-eu-2"),
        Step(2, "claim", "orders-eu-2", tuple(range(2 * quarter, 4 * quarter))),
        Step(14, "join", "orders-spot-1"),
        Step(14.2, "request", "orders-spot-1", quarters[1]),
        Step(14.5, "hand over", "orders-eu-1", quarters[1]),
        Step(21, "join", "orders-spot-2"),
        Step(21.2, "request", "orders-spot-2", last),
        Step(21.5, "hand over", "orders-eu-2", last),
        Step(34.6, "claim", "orders-eu-1", last[: len(last) // 2]),  # orders-spot-2 was killed at 34
        Step(34.7, "claim", "orders-eu-2", last[len(last) // 2 :]),
        Step(35, "forget", "orders-eu-1"),
        Step(41, "join", "orders-spot-2"),
        Step(41.2, "request", "orders-spot-2", last),
        Step(41.5, "hand over", "orders-eu-1", last[: len(last) // 2]),
        Step(41.5, "hand over", "orders-eu-2", last[len(last) // 2 :]),
        Step(52, "pin", "orders-eu-1", (0,)),
        Step(59.8, "request", "orders-eu-2", quarters[1][-1:]),
    )


def _transitions(step: Step, snapshot: Snapshot, at_ms: int) -> list[Transition]:
    by = Author(step.who, f"{step.who}-{step.minute < 41}")
    named = [str(each) for each in step.partitions]
    if step.event == "join":
        host = f"{'spot' if 'spot' in step.who else 'aks-stream'}-{step.who[-1]}.internal"
        join = Join(by=by, at_ms=at_ms, host=host, strategy="cooperative", lease_duration_ms=30_000)
        return [join] if snapshot.leases else [join, AddPartitions(by=by, at_ms=at_ms, partitions=_ids(64))]
    if step.event == "forget":
        gone = snapshot.members["orders-spot-2"]
        return [Forget(by=_author(snapshot, step.who), at_ms=at_ms, member=gone.id, counter=gone.counter)]
    if step.event == "pin":
        why = "close to the ledger's region until the migration is done"
        return [PinTo(by=_OPERATOR, at_ms=at_ms, partition="0", to=step.who, timeout_ms=30_000, why=why)]
    by, made = _author(snapshot, step.who), list[Transition]()
    for partition in named:
        lease = snapshot.leases[partition]
        known = {"by": by, "at_ms": at_ms, "partition": partition, "epoch": lease.epoch}
        if step.event == "claim":
            start = None if lease.checkpoint else Position(int(partition) * 90_000)
            made.append(Claim(**known, unchanged_counter=lease.counter, starting_position=start))
        elif step.event == "request":
            made.append(RequestHandover(**known, to=step.who, timeout_ms=30_000))
        else:
            made.append(HandOver(**known))
    return made


def _ids(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _author(snapshot: Snapshot, member: str) -> Author:
    return Author(member, snapshot.members[member].incarnation)


def looks(partitions: int = 32, step: int = 10) -> Iterator[Look]:
    """The looks of the last hour, one in `step` seconds."""
    snapshot, left = Snapshot(GROUP), [*_steps(partitions)]
    for second in range(0, 3600 + step, step):
        at_ms, added = NOW - (3600 - second) * 1000, list[OwnershipChange]()
        while left and left[0].minute * 60 <= second:
            transitions = _transitions(left.pop(0), snapshot, at_ms)
            transitions = [
                replace(each, partitions=_ids(partitions)) if isinstance(each, AddPartitions) else each
                for each in transitions
            ]
            outcome = apply(snapshot, transitions)
            assert not outcome.refused, outcome.refused
            added += ownership_changes(outcome)
            snapshot = outcome.after
        snapshot = apply(snapshot, _duration(snapshot, at_ms)).after
        snapshot = _alive(snapshot, second, at_ms)
        yield Look(snapshot, added, at_ms, float(second))


def _duration(snapshot: Snapshot, at_ms: int) -> list[Transition]:
    if snapshot.leader is None or snapshot.lease_duration_ms is not None:
        return []
    return [SetLeaseDuration(by=_author(snapshot, snapshot.leader), at_ms=at_ms, lease_duration_ms=30_000)]


def _alive(snapshot: Snapshot, second: int, at_ms: int) -> Snapshot:
    """The snapshot after signs of life, with loads and lags that go up and down."""
    dead = "orders-spot-2" if 34 * 60 <= second < 41 * 60 else ""
    members, leases = {}, {}
    for number, (id, member) in enumerate(snapshot.members.items()):
        wave = 1 + 0.1 * math.sin(second / 200 + number)
        load = MemberLoad(_RATES[id] * wave, 900 * wave, 2.4 + 0.3 * number, 0.42 + 0.07 * number)
        alive = replace(member, renewal=member.renewal + 1, renewed_at_ms=at_ms - 400 * number, load=load)
        members[id] = member if id == dead else alive
    for number, (partition, lease) in enumerate(snapshot.leases.items()):
        events = _unread(number, second, len(snapshot.leases) // 4)
        next = number * 90_000 + second * 140
        rate = 520 + 40 * math.sin(second / 90 + number)
        lag = Lag(next, next + events, at_ms - round(1000 * events / 40) if events else None, at_ms)
        leases[partition] = replace(
            lease, renewed_at_ms=at_ms, checkpoint=Position(next - 1), load=Load(rate, float(events)), lag=lag
        )
    return replace(snapshot, version=second, members=members, leases=leases)


def _unread(number: int, second: int, quarter: int) -> int:
    """A little all the time; at times more in each fourth partition, and in the last quarter while nobody reads it,
    which its next owners work off."""
    crash, taken = 34 * 60, 34.6 * 60
    events = 260 + 180 * math.sin(second / 130 + number) + (number % 5) * 60
    if number % 4 == 1:
        events += 1900 * math.exp(-(((second - 51 * 60) / 80) ** 2))
    if number >= 3 * quarter and second > crash:
        behind = 140 * (min(second, taken) - crash) * math.exp(-max(0.0, second - taken) / 120)
        events += behind * (1 + 0.1 * (number % 3))
    return max(0, round(events))


def board() -> Board:
    """The board of this group alone."""
    made = Board(["leases/orders"], clock=lambda: NOW)
    _show(made, 0, looks())
    return made


def difficult() -> Board:
    """The board of a large group with long names, of one that is empty, and of one that is missing."""
    made = Board(["leases/large", "leases/empty", "leases/missing"], clock=lambda: NOW)
    _show(made, 0, map(_with_long_names, looks(256, 120)))
    _show(made, 1, [_EMPTY])
    made.fail(
        2, "there is no lease table at leases/missing: if there was one, put it back; else `ehbalance init` makes one"
    )
    return made


def _show(made: Board, number: int, found: Iterable[Look]) -> None:
    view = View()
    for look in found:
        sections = view.sections(look)
    made.show(number, sections, NOW)


_EMPTY = Look(Snapshot(Group("contoso-trading.servicebus.windows.net", "returns", "billing")), (), NOW, 0.0)


def _with_long_names(look: Look) -> Look:
    group, snapshot = Group(GROUP.namespace, "telemetry" + "-of-all-devices" * 8, "x" * 60), look.snapshot
    leases = {id: replace(each, owner=each.owner and _long(each.owner)) for id, each in snapshot.leases.items()}
    named = [replace(each, id=_long(each.id), host=_long(each.host)) for each in snapshot.members.values()]
    named_by_id = {each.id: each for each in named}
    return replace(look, snapshot=replace(snapshot, group=group, leases=leases, members=named_by_id), added=())


def _long(name: str) -> str:
    return f"{name}-of-the-team-that-has-long-names-{'0123456789abcdef' * 4}"


if __name__ == "__main__":
    with listening(0) as listener:
        print("Dashboard: http://{}:{}/ (Ctrl-C ends it)".format(*listener.getsockname()), flush=True)
        serve(difficult() if sys.argv[1:] == ["difficult"] else board(), listener)
