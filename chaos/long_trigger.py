"""Measures how long handovers take with long triggers: the part `triggers` of `chaos.handover`.

Two queries run under load with a processing-time trigger of a minute. Between two batches a third query joins; during
its next batch it is told to leave (`spark_ehbalance.stop`).

*Took*, of a partition that moved = time from when the handover was possible until the change of owner in the group's
history. It was possible when the third query had joined or was told to leave, or when the running batch with the
partition was written, whichever was later.

Without the listener (`spark_ehbalance.register`) the planner learns of a batch's end at the next trigger. If that is
later than `handoverTimeout`, the next owner claims the partition and reads the batch again: no event may be missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chaos.account import Account, account
from chaos.fleet import Fleet
from chaos.processes import QueryProcess
from chaos.results import log, print_table
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.source.options import Options

#: Seconds that a handover may take once the batch has ended.
MOST_TAKEN = 2.0

#: The trigger without the listener, in seconds: up to ten for the first batch and the third query's join, then the
#: whole handover timeout must pass before the next trigger.
WITHOUT_LISTENER = round(Options.handover_timeout) + 20

#: Seconds beyond triggers and timeouts, for a busy machine.
_ALLOWANCE = 100.0


@dataclass
class Move:
    """A partition that moved from one query to another.

    `how` is the cause, `event` the transition's name, `took` in seconds. `waited`: a running batch had to end first.
    """

    how: str
    partition: str
    before: str
    after: str
    event: str
    took: float
    waited: bool


@dataclass
class Outcome:
    """The results with a trigger of `seconds`, with or without the listener."""

    seconds: int
    listener: bool
    moves: list[Move] = field(default_factory=list)
    account: Account = field(default_factory=Account)

    @property
    def passed(self) -> bool:
        if self.account.missing or {move.how for move in self.moves} < {"join", "leave"}:
            return False
        quick = all(move.took <= MOST_TAKEN for move in self.moves)
        return not self.listener or (quick and self.account.passed and not self.account.duplicates)

    def print(self) -> None:
        title = f"trigger {self.seconds} s, {'with' if self.listener else 'without'} the listener"
        rows: list[Sequence[object]] = []
        for move in self.moves:
            what = f"{move.how}, partition {move.partition}{', after its batch' if move.waited else ''}"
            bar = f"{MOST_TAKEN:g} s" if self.listener else ""
            rows.append((what, move.before, move.after, move.event, f"{move.took:.2f} s", bar))
        rows += [
            ("events sent", "", "", "", self.account.sent, ""),
            ("missing", "", "", "", len(self.account.missing), "0"),
            ("read twice", "", "", "", self.account.duplicates, "0" if self.listener else ""),
        ]
        print_table(("what", "from", "to", "by", "took", "bar"), rows, title)


def measure(fleet: Fleet, *, seconds: int, listener: bool) -> Outcome:
    """Measure on `fleet`, which has this trigger. Raises `TimeoutError` if a step takes too long."""
    timeout = 2 * seconds + Options.handover_timeout + _ALLOWANCE
    acts: list[tuple[float, str]] = []

    def wait_for(condition: Callable[[], bool], what: str) -> None:
        fleet.wait_for(condition, what, timeout)

    def join(how: str, *names: str) -> None:
        for name in names:
            processes[name].tell("start", owner=f"{name}.1")
        everybody = sorted({*"ab", *names})
        wait_for(lambda: fleet.shared_by(*everybody), f"{', '.join(everybody)} share the partitions")
        members = fleet.snapshot().members
        acts.extend((members[f"{name}.1"].started_at_ms / 1000, how) for name in names)

    processes: dict[str, QueryProcess] = {name: fleet.launch(name) for name in "abc"}
    join("start", "a", "b")
    fleet.producer.start()
    wait_for(lambda: fleet.read_by_owners(), "a and b have read everything")
    log(f"trigger {seconds} s, {'with' if listener else 'without'} the listener: a batch is written, c joins")
    join("join", "c")
    batches = _planned(fleet, "c")
    wait_for(lambda: _planned(fleet, "c") > batches, "c is at its next batch")
    log("  c is in its next batch, and leaves")
    acts.append((time.time(), "leave"))
    processes["c"].tell("stop")
    wait_for(lambda: fleet.shared_by("a", "b"), "a and b share the partitions")
    fleet.producer.stop()
    log("  a and b own all partitions, and read the rest")
    # Without the listener the last batch is checkpointed one trigger later.
    done = fleet.checkpointed if listener else lambda: True
    wait_for(lambda: fleet.sink.has_all(fleet.producer.sent) and done(), "everything is read")
    return Outcome(seconds, listener, _moves(fleet, acts), account(fleet.sink.batches, fleet.producer.sent, []))


def _planned(fleet: Fleet, name: str) -> int:
    """The number of batches that a query has begun, from Spark's log."""
    log = fleet.folder / name / "checkpoints" / f"{name}.1" / "offsets"
    return sum(1 for path in log.glob("*") if path.name.isdecimal())


def _moves(fleet: Fleet, acts: list[tuple[float, str]]) -> list[Move]:
    """The moves from one query to another, also with a time without an owner in between."""
    moves, last = list[Move](), dict[str, OwnershipChange]()
    for change in fleet.store.history():
        if change.owner is None or change.partition is None:
            continue
        before = last.get(change.partition)
        last[change.partition] = change
        if before is None or before.owner is None or before.owner == change.owner:
            continue
        at, got = change.at_ms / 1000, before.at_ms / 1000
        # There is none if a query failed meanwhile: its row has only the time of its last join.
        asked, how = max((act for act in acts if act[0] <= at), default=(got, "restart"))
        written = max(
            (
                batch.written
                for batch in fleet.sink.batches
                if batch.owner == before.owner
                and batch.epochs.get(change.partition) == before.epoch
                and batch.written <= at
            ),
            default=asked,
        )
        took = at - max(asked, written, got)
        moves.append(Move(how, change.partition, before.owner, change.owner, change.event, took, written > asked))
    return moves
