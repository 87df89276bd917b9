"""A silent partition must not stop the others: two queries, and later three, share a hub while one partition delivers
nothing.

The hub still answers requests, and reports events in that partition. Meanwhile, the queries must read the other
partitions in time, and afterwards the rest of the silent one. No query may end, and every event is accounted for.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from chaos.account import TargetAccount, account_target
from chaos.fleet import HUB, Fleet
from chaos.processes import QueryProcess
from chaos.results import RunOptions, log, print_table

PARTITIONS, RATE = 4, 100.0

#: Seconds without an event after which a partition stalls.
_RECEIVER_TIMEOUT = 5.0

#: Maximum `Silence.lag`. On a busy machine, a checkpoint of the target's log takes 20 s.
MAX_LAG = 30.0

#: Seconds within which all queries must have begun to read, on a busy machine.
_START_TIMEOUT = 600.0


@dataclass(frozen=True)
class Silence:
    """The silence of one partition. At its end, the oldest unread event in the other partitions was `lag` seconds old.
    The events in the silent partition were read within `recovered` seconds after it."""

    queries: int
    partition: str
    lag: float
    recovered: float


class Trial:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._queries: dict[str, QueryProcess] = {}
        self._journal: list[dict[str, Any]] = []

    def start(self, name: str) -> None:
        self._queries[name] = self._fleet.launch(name)
        self._queries[name].command("start", owner=f"{name}.1")

    def silence(self, seconds: float) -> Silence:
        """When all queries read, pause a partition whose owner has at least two, and later wait until its backlog is
        read. Raises `TimeoutError`, including when the partition does not stall."""
        fleet = self._fleet
        what = "all queries read"
        fleet.wait_for(lambda: fleet.shared_by(*self._queries) and fleet.read_by_owners(), what, _START_TIMEOUT)
        owners = {partition: lease.owner for partition, lease in fleet.snapshot().leases.items()}
        partition = next(partition for partition, owner in owners.items() if [*owners.values()].count(owner) > 1)
        log(f"{len(self._queries)} queries: partition {partition} is silent for {seconds:g} s")
        fleet.emulator.pause(HUB, partition)
        began = time.monotonic()
        fleet.wait_for(lambda: fleet.snapshot().leases[partition].stall_count, "the partition stalls")
        log(f"  it stalled within {time.monotonic() - began:.0f} s")
        fleet.wait_for(lambda: time.monotonic() >= began + seconds, "the silence ends", seconds + 1.0)
        lag, backlog = self._lag_without(partition), self._unread(partition)
        fleet.emulator.resume(HUB, partition)
        ended = time.monotonic()
        log(f"  it returns with {len(backlog):,} unread events, the others lag {lag:.1f} s behind")
        fleet.wait_for(lambda: not backlog & self._unread(partition), "its backlog is read")
        return Silence(len(self._queries), partition, lag, time.monotonic() - ended)

    def drain(self) -> list[str]:
        """Read the rest, and stop all queries. Returns the errors of the queries that failed before."""
        fleet = self._fleet
        fleet.producer.stop()
        fleet.wait_for(lambda: fleet.sink.has_all(fleet.producer.sent) and fleet.checkpointed(), "everything is read")
        for query in self._queries.values():
            query.command("stop")
        fleet.wait_for(self._stopped, "all queries have stopped")
        return [event["why"] for event in self._journal if event["event"] == "failed"]

    def _stopped(self) -> bool:
        """Whether all queries have stopped. Never true if a process has already ended."""
        self._journal += (event for query in self._queries.values() for event in query.new_events())
        return [event["event"] for event in self._journal].count("stopped") == len(self._queries)

    def _unread(self, partition: str) -> set[int]:
        """The numbers of the partition's events that are not in the sink."""
        read = self._fleet.sink.read[partition]
        return {number for at, number in enumerate(self._fleet.producer.sent[partition]) if at not in read}

    def _lag_without(self, silent: str) -> float:
        """Seconds since the oldest unread event in the other partitions was sent."""
        others = (self._unread(partition) for partition in self._fleet.producer.sent if partition != silent)
        newest = self._fleet.producer.count
        return (newest - min((number for unread in others for number in unread), default=newest)) / RATE


def counts(name: str, found: TargetAccount, may_repeat: Collection[str]) -> list[tuple[str, int, str]]:
    """The report's rows about a sink. Only events from the partitions `may_repeat` are allowed to be there twice."""
    repeated = sum(partition in may_repeat for partition, _ in found.duplicates)
    return [
        (f"{name}: missing", len(found.missing), "0"),
        (f"{name}: no event of the hub", found.foreign, "0"),
        *([(f"{name}: twice, where it stalled", repeated, "")] if may_repeat else []),
        (f"{name}: twice", len(found.duplicates) - repeated, "0"),
    ]


def run(run_options: RunOptions) -> bool:
    """Run two silences of `run_options.minutes`: one with two queries, and one with three."""
    options = {"receiverTimeout": f"{_RECEIVER_TIMEOUT:g} s"}
    with Fleet(PARTITIONS, RATE, options, "2 seconds", run_options.keep, exactly_once=not run_options.plain) as fleet:
        trial, silences = Trial(fleet), list[Silence]()
        fleet.producer.start()
        trial.start("a")
        for name in "bc":
            trial.start(name)
            silences.append(trial.silence(60 * run_options.minutes))
        failures = trial.drain()
        appended = (event for batch in fleet.sink.batches for event in batch.events)
        rows = [("events sent", fleet.producer.count, ""), ("queries that ended", len(failures), "0")]
        rows += counts("plain append", account_target(appended, fleet.producer.sent), {s.partition for s in silences})
        if not run_options.plain:
            rows += counts("exactly once", account_target(fleet.target_rows(), fleet.producer.sent), ())
    print_table(("what", "count", "bar"), [(what, f"{count:,}", bar) for what, count, bar in rows], "silence")
    for silence in silences:
        log(
            f"{silence.queries} queries, partition {silence.partition} silent for {60 * run_options.minutes:g} s: "
            f"the others' lag {silence.lag:.1f} s (bar: {MAX_LAG:g} s), backlog read after {silence.recovered:.1f} s"
        )
    for failure in failures[:20]:
        log(f"query failed: {failure}")
    return not any(count for _, count, bar in rows if bar) and all(silence.lag <= MAX_LAG for silence in silences)
