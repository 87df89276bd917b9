"""Past bugs, each as the smallest change to today's code that causes it again. `python -m storm.faults [NAME ...]` runs
seeds with each bug until the storm finds it, and prints the violated invariant."""

from __future__ import annotations

import importlib
import itertools
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from storm.__main__ import in_parallel
from storm.plan import draw
from storm.rewriting import rewrite_functions
from storm.witness import Violation


@dataclass(frozen=True, slots=True)
class PastFault:
    """A bug: the source of `module` with `new` in place of `old`. It violates one of the `invariants`. If there is a
    `seed`, it does so with this seed, within two seconds."""

    name: str
    module: str
    old: str
    new: str
    invariants: tuple[str, ...]
    seed: int | None = None

    def load(self) -> tuple[ModuleType, str]:
        """The module, and its source with the bug."""
        module = importlib.import_module(f"spark_ehbalance.{self.module}")
        assert module.__file__ is not None
        source = Path(module.__file__).read_text(encoding="utf-8")
        if source.count(self.old) != 1:
            raise LookupError(f"{self.name}: {self.module} contains {source.count(self.old)} times: {self.old}")
        return module, source.replace(self.old, self.new)

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Run the `with` block with the bug."""
        module, source = self.load()
        with rewrite_functions(module, source):
            yield


PAST_FAULTS = (
    PastFault(
        "a batch is planned with expired leases",
        "group.member.membership",
        "return {p: holding for p, holding in holdings.items() if now < holding.ends}",
        "return holdings",
        ("two planners",),
        seed=3,
    ),
    PastFault(
        "a planner that was suspended plans with the leases that it had before the suspension",
        "group.member.engine",
        "held = self.readable(now, replay=True)\n        partitions",
        "held = self.plannable(replay=True)\n        partitions",
        ("two planners",),
        seed=88,
    ),
    PastFault(
        "a suspended process hands out a planned range that another member has taken",
        "query.engine",
        "return shared and not self.member",
        "return False and not self.member",
        ("two planners",),
        seed=18,
    ),
    PastFault(
        "a lease counts from the end of a read, during which another process may have claimed it",
        "group.member.membership",
        "since = self.read_state.before if renewed is None else self.read_state.begun",
        "since = now.monotonic",
        ("two planners",),
        seed=36,
    ),
    PastFault(
        "a renewal counts from the end of its commit",
        "group.member.engine",
        "self._member.after_commit(outcome, turn.now, now.monotonic, self.query)",
        "self._member.after_commit(outcome, now, now.monotonic, self.query)",
        ("two planners",),
        seed=16,
    ),
    PastFault(
        "leases remain valid for the old duration after the group's lease duration decreases",
        "group.member.membership",
        "replace(lease, lasts=min(lease.lasts, duration.own))",
        "lease",
        ("two planners",),
    ),
    PastFault(
        "after a read-only period, the first member that writes declares all others dead",
        "group.member.membership",
        "return now.monotonic - self.commit_state.at > short_outage(self.duration.shortest)",
        "return False",
        ("two planners", "expiry"),
        seed=6,
    ),
    PastFault(
        "a member that could not read the table for a while declares others dead",
        "group.member.membership",
        "or at - last.at > self.duration.shortest / 2:",
        "or False:",
        ("two planners", "expiry"),
        seed=23,
    ),
    PastFault(
        "an unreadable lease table stops every query",
        "group.member.membership",
        "suspended = begun is not None and now - begun >= self._between_tries",
        "suspended = True",
        ("outage",),
        seed=33,
    ),
    PastFault(
        "a handover is carried out during a batch",
        "group.member.engine",
        "return frozenset() if self._hang.active else self.query.in_flight",
        "return frozenset() if True else self.query.in_flight",
        ("planned move",),
        seed=3,
    ),
    PastFault(
        "progress under an earlier epoch counts after a forced move",
        "query.batch_planning",
        "if progress is not None and progress.epoch == epoch else",
        "if progress is not None else",
        ("skipped",),
        seed=13,
    ),
    PastFault(
        "a checkpoint of an earlier epoch is accepted",
        "group.changes",
        "if lease.epoch != self.epoch:",
        "if lease.epoch != self.epoch and not isinstance(self, Checkpoint):",
        ("fenced",),
        seed=3,
    ),
    PastFault(
        "a stall does not raise the epoch",
        "group.changes",
        "epoch=lease.epoch + 1,\n            renewed_at_ms=self.at_ms,",
        "renewed_at_ms=self.at_ms,",
        ("skipped", "errors"),
        seed=8,
    ),
    PastFault(
        "a batch is run again with a partition that has stalled since",
        "group.changes",
        "owned_since_ms=0,  # ends the tenure",
        "# ends the tenure",
        ("batch numbers", "skipped"),
    ),
    PastFault(
        "a silent partition is not read again",
        "query.stalls",
        "probe._replace(due=repeat_at, end=ends.get(partition))",
        "probe._replace(due=repeat_at)",
        ("recovery",),
        seed=3,
    ),
    PastFault(
        "a batch is run again with partitions that others have read since",
        "query.replay",
        "return holding.epoch <= logged.epoch + 1 or 0 < logged.since_ms == holding.since_ms",
        "return True",
        ("skipped", "batch numbers"),
    ),
    PastFault(
        "a batch that is run again drops a partition that was sought since",
        "query.replay",
        "return was_moved_by_seek(range_, holding) or holding.checkpoint.next == range_.start",
        "return holding.checkpoint.next == range_.start",
        ("sought",),
        seed=1059,
    ),
    PastFault(
        "a batch that is run again after a suspension is dropped",
        "query.engine",
        "return self._planned(end) is not None or (",
        "return True or (",
        ("batch numbers",),
    ),
    PastFault(
        "the next offset lacks the progress under a lapsed lease",
        "query.engine",
        "if p not in owned and p in leases and leases[p].epoch == x.epoch}",
        "if False}",
        ("batch numbers",),
        seed=805,
    ),
    PastFault(
        "a restarted query does not know the progress that its table is missing",
        "query.replay",
        "return _unknown_progress(logged.progress(), found), EarlierBatches(logged.finished, record.batch)",
        "return {}, EarlierBatches(logged.finished, record.batch)",
        ("batch numbers",),
        seed=39,
    ),
    PastFault(
        "leases that an earlier process claimed during the join are released",
        "group.member.pending",
        "transitions += _claims(member, member.unclaimed, len(member.owned), at_ms)",
        "transitions += [\n"
        "        Release(by=by, at_ms=at_ms, partition=x.partition, epoch=x.epoch) for x in member.unclaimed\n"
        "    ]",
        ("planned move",),
        seed=1038,
    ),
    PastFault(
        "two processes of a query own a partition in the same epoch",
        "group.member.membership",
        "written = replace(written, unclaimed=unclaimed)",
        "pass",
        ("epoch",),
        seed=1038,
    ),
    PastFault(
        "a joining process that missed a lease fences a later process",
        "group.member.membership",
        "written = replace(written, joined=row.joined)",
        "written = replace(written, joined=None if written.unclaimed else row.joined)",
        ("fenced", "errors"),
        seed=100305,
    ),
    PastFault(
        "a process joins although another process of the query has begun a later batch",
        "group.changes",
        "if own and own.run != self.by.incarnation and not own.is_continued_by(self.begun, self.planner):",
        "if False:",
        ("record",),
        seed=100105,
    ),
    PastFault(
        "a process that joins again fences a later process of its query",
        "group.changes",
        "if self.again and others:",
        "if False:",
        ("fenced",),
        seed=100285,
    ),
    PastFault(
        "a lease that was handed over is valid for a duration that no other member has read",
        "group.member.membership",
        "renewed_at, lasts = since, min(last_duration, self.duration.own)",
        "renewed_at, lasts = since, self.duration.own",
        ("two planners",),
    ),
    PastFault(
        "positions count all of a batch as read although a change of owner cut it short",
        "query.positions",
        "known = batch.end.checkpoints if shared else {}",
        "shared, known = False, {}",
        ("skipped",),
        seed=3,
    ),
    PastFault(
        "a query continues with a checkpoint that was rolled back",
        "group.model",
        "return self.begun < begun and (self.run in",
        "return True or (self.run in",
        ("skipped", "record"),
        seed=191,
    ),
    PastFault(
        "the lease table does not record which batch was begun last",
        "query.engine",
        "self.member.record_batch(end.batch, end.run)",
        "pass",
        ("skipped", "errors"),
        seed=100291,
    ),
    PastFault(
        "a query continues with the positions of a hub that was recreated",
        "query.consistency",
        "if known is None or not known.differs_from(found):",
        "if True:",
        ("skipped", "errors", "recovery"),
        seed=57,
    ),
    PastFault(
        "members with different strategies wait for each other for ever",
        "group.strategies.mixing",
        "memory=last.memory if own else None",
        "memory=last.memory if own and not mixed else None",
        ("recovery", "start"),
        seed=237,
    ),
    PastFault(
        "AvailableNow ends without reading partitions that it could not plan for a moment",
        "query.engine",
        "if self.fixed_ends is None or self.member.is_leaving:",
        "if True:",
        ("available now",),
        seed=1010,
    ),
    PastFault(
        "AvailableNow ends without reading all events after a batch longer than maxStall",
        "group.member.engine",
        "(self._member.read_state.drained and not self._hang.drained)",
        "self._member.read_state.drained",
        ("available now",),
        seed=5047,
    ),
    PastFault(
        "exactly once: a range that was cut short counts as written",
        "exactly_once.protocol",
        "        if answer:\n",
        "        if False:\n",
        ("skipped",),
        seed=27,
    ),
    PastFault(
        "exactly once: events before the marks are written again",
        "exactly_once.protocol",
        "events = missing(wanted, marks)",
        "events = dict(wanted)",
        ("exactly once",),
        seed=0,
    ),
)


_applied = ExitStack()


def _is_small(seed: int) -> bool:
    """Whether the group of `seed` runs in less than a second."""
    plan = draw(seed)
    return plan.partitions * len(plan.queries) <= 16


def _begin(fault: PastFault) -> None:
    logging.disable()
    _applied.enter_context(fault.apply())


def _find(fault: PastFault, first: int, seconds: float) -> tuple[int, Violation | None]:
    """Run seeds of small groups until one violates an invariant. Returns the number of seeds, and the violation."""
    until, played = time.monotonic() + seconds, 0
    small = filter(_is_small, itertools.count(first))
    with multiprocessing.Pool(initializer=_begin, initargs=(fault,)) as pool:
        for _, result in in_parallel(pool, itertools.takewhile(lambda _: time.monotonic() < until, small)):
            played += 1
            if result.violation is not None:
                return played, result.violation
    return played, None


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Only faults whose names contain one of these.")] = None,
    first: Annotated[int, typer.Option(help="First seed.")] = 0,
    seconds: Annotated[float, typer.Option(help="Time limit per fault.")] = 600.0,
) -> None:
    """Apply past bugs, and show the invariant that each violates. Exits with 1 if a bug is not found."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    table, all_found = Table("fault", "invariant", "seeds", "seconds"), True
    with Live(table, console=console):
        for fault in PAST_FAULTS:
            if any(name in fault.name for name in names or [""]):
                began = time.monotonic()
                played, violation = _find(fault, first, seconds)
                all_found &= violation is not None and violation.name in fault.invariants
                what, took = str(violation or "not found"), time.monotonic() - began
                table.add_row(fault.name, what, str(played), f"{took:.0f}")
    raise typer.Exit(not all_found)


if __name__ == "__main__":
    typer.run(main)
