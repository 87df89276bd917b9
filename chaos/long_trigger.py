"""How long a partition waits for its next owner where triggers are long: the part `triggers` of `chaos.handover`.

Two queries under load with a processing-time trigger of a minute. After a batch a third one joins, while the two are at
rest; when it is at its next batch it is told to leave (`spark_ehbalance.stop`).

*Took*, of a partition that moved: the time from when it could be had until it was the next owner's, by the group's
history. It could be had when the third query had joined or was told to leave, or when the batch in flight with it was
written, whichever came last.

Without the listener (`spark_ehbalance.register`) the planner learns of a batch's end at the next trigger. If that is
further away than `handoverTimeout`, partitions are taken by force and the batch is read twice: nothing may be missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.table import Table

from chaos.account import Account, account
from chaos.fleet import Fleet
from chaos.processes import QueryProcess
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.source.options import Options

#: Seconds that a handover may take once the batch has ended.
MOST_TAKEN = 2.0

#: Seconds between two triggers that suffice without the listener: it takes up to ten until the first batch is written
#: and the third query has joined, which is then to wait for the whole timeout, in vain, before the next trigger.
WITHOUT_LISTENER = round(Options.handover_timeout) + 20

#: Seconds beyond triggers and timeouts that a machine may be busy with something else.
_PATIENCE = 100.0


@dataclass
class Move:
    """A partition that went from one query to another, because of `how`, by `event` (a transition's name). `took` is
    in seconds; `waited`: until a batch in flight was written."""

    how: str
    partition: str
    before: str
    after: str
    event: str
    took: float
    waited: bool


@dataclass
class Outcome:
    """What was measured at a trigger of so many `seconds`, with or without the listener."""

    seconds: int
    listener: bool
    moves: list[Move] = field(default_factory=list)
    account: Account = field(default_factory=Account)

    @property
    def passed(self) -> bool:
        if self.account.missing or {move.how for move in self.moves} < {"join", "leave"}:
            return False
        prompt = all(move.took <= MOST_TAKEN for move in self.moves)
        return not self.listener or (prompt and self.account.passed and not self.account.duplicates)

    def report(self) -> Table:
        """The table for people."""
        title = f"trigger {self.seconds} s, {'with' if self.listener else 'without'} the listener"
        table = Table(title=title, title_justify="left")
        for column in ("what", "from", "to", "by", "took", "bar"):
            table.add_column(column, justify="right" if column in ("took", "bar") else "left")
        for move in self.moves:
            what = f"{move.how}, partition {move.partition}{', after its batch' if move.waited else ''}"
            bar = f"{MOST_TAKEN:g} s" if self.listener else ""
            table.add_row(what, move.before, move.after, move.event, f"{move.took:.2f} s", bar)
        table.add_section()
        for what, count, bar in (
            ("events sent", self.account.sent, ""),
            ("missing", len(self.account.missing), "0"),
            ("read twice", self.account.duplicates, "0" if self.listener else ""),
        ):
            table.add_row(what, "", "", "", f"{count:,}", bar)
        return table


def measure(fleet: Fleet, *, seconds: int, listener: bool, say: Callable[[str], None]) -> Outcome:
    """Measure on `fleet`, which has this trigger. Raises `TimeoutError` if what is waited for does not come."""
    patience = 2 * seconds + Options.handover_timeout + _PATIENCE
    acts: list[tuple[float, str]] = []

    def wait_for(condition: Callable[[], bool], what: str) -> None:
        fleet.wait_for(condition, what, patience)

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
    say(f"trigger {seconds} s, {'with' if listener else 'without'} the listener: a batch is written, c joins")
    join("join", "c")
    batches = _planned(fleet, "c")
    wait_for(lambda: _planned(fleet, "c") > batches, "c is at its next batch")
    say("  c is at its next batch, and leaves")
    acts.append((time.time(), "leave"))
    processes["c"].tell("stop")
    wait_for(lambda: fleet.shared_by("a", "b"), "a and b share the partitions")
    fleet.producer.stop()
    say("  a and b have everything, and read the rest")
    # Without the listener the group hears of the last batch one trigger later.
    done = fleet.checkpointed if listener else lambda: True
    wait_for(lambda: fleet.sink.has_all(fleet.producer.sent) and done(), "everything is read")
    return Outcome(seconds, listener, _moves(fleet, acts), account(fleet.sink.batches, fleet.producer.sent, []))


def _planned(fleet: Fleet, name: str) -> int:
    """How many batches a query has begun, by Spark's log."""
    log = fleet.folder / name / "checkpoints" / f"{name}.1" / "offsets"
    return sum(1 for path in log.glob("*") if path.name.isdecimal())


def _moves(fleet: Fleet, acts: list[tuple[float, str]]) -> list[Move]:
    """What has gone from one query to another, also by way of nobody."""
    moves, last = list[Move](), dict[str, OwnershipChange]()
    for change in fleet.store.history():
        if change.owner is None or change.partition is None:
            continue
        before = last.get(change.partition)
        last[change.partition] = change
        if before is None or before.owner is None or before.owner == change.owner:
            continue
        at, got = change.at_ms / 1000, before.at_ms / 1000
        # There is none if a query has failed meanwhile: its row tells only when it joined last.
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
