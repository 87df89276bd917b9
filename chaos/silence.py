"""A silent partition stops no other: two queries, then three, share a hub while one partition delivers nothing.

The hub still answers, and reports events there. Meanwhile the queries must read the others in time, and afterwards the
rest of it. No query may end, and every event is accounted for.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from chaos.account import TargetAccount, account_target
from chaos.fleet import HUB, Fleet
from chaos.processes import QueryProcess
from chaos.results import Form, log, print_table

PARTITIONS, RATE = 4, 100.0

#: Seconds without an event after which a partition stalls.
_RECEIVER_TIMEOUT = 5.0

#: The bar for `Silence.lag`: on a busy machine a checkpoint of the target's log takes 20 s.
MOST_LAG = 30.0

#: Seconds within which all queries must read, on a busy machine.
_START_TIMEOUT = 600.0


@dataclass(frozen=True)
class Silence:
    """At its end the oldest unread event of the other partitions was `lag` seconds old. The events that its partition
    had by then were read `recovered` seconds later."""

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
        """Once all queries read, pause a partition of one that has two, and read it afterwards. Raises `TimeoutError`,
        also if it does not stall."""
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
        """Read the rest and stop all queries. Returns the errors of those that ended before."""
        fleet = self._fleet
        fleet.producer.stop()
        fleet.wait_for(lambda: fleet.sink.has_all(fleet.producer.sent) and fleet.checkpointed(), "everything is read")
        for query in self._queries.values():
            query.command("stop")
        fleet.wait_for(self._stopped, "all queries have stopped")
        return [event["why"] for event in self._journal if event["event"] == "failed"]

    def _stopped(self) -> bool:
        """Never true if a process has ended before."""
        self._journal += (event for query in self._queries.values() for event in query.new_events())
        return [event["event"] for event in self._journal].count("stopped") == len(self._queries)

    def _unread(self, partition: str) -> set[int]:
        """The numbers of the events that are not in the sink."""
        read = self._fleet.sink.read[partition]
        return {number for at, number in enumerate(self._fleet.producer.sent[partition]) if at not in read}

    def _lag_without(self, silent: str) -> float:
        """Seconds since the oldest unread event of the other partitions was sent."""
        others = (self._unread(partition) for partition in self._fleet.producer.sent if partition != silent)
        newest = self._fleet.producer.count
        return (newest - min((number for unread in others for number in unread), default=newest)) / RATE


def counts(name: str, found: TargetAccount, may_repeat: Collection[str]) -> list[tuple[str, int, str]]:
    """The rows of a sink in the report. Only events of the partitions `may_repeat` may be there twice."""
    repeated = sum(partition in may_repeat for partition, _ in found.duplicates)
    return [
        (f"{name}: missing", len(found.missing), "0"),
        (f"{name}: no event of the hub", found.foreign, "0"),
        *([(f"{name}: twice, where it stalled", repeated, "")] if may_repeat else []),
        (f"{name}: twice", len(found.duplicates) - repeated, "0"),
    ]


def run(form: Form) -> bool:
    """Two silences of `form.minutes`: with two queries, and with three."""
    options = {"receiverTimeout": f"{_RECEIVER_TIMEOUT:g} s"}
    with Fleet(PARTITIONS, RATE, options, "2 seconds", form.keep, exactly_once=not form.plain) as fleet:
        trial, silences = Trial(fleet), list[Silence]()
        fleet.producer.start()
        trial.start("a")
        for name in "bc":
            trial.start(name)
            silences.append(trial.silence(60 * form.minutes))
        failures = trial.drain()
        appended = (event for batch in fleet.sink.batches for event in batch.events)
        rows = [("events sent", fleet.producer.count, ""), ("queries that ended", len(failures), "0")]
        rows += counts("plain append", account_target(appended, fleet.producer.sent), {s.partition for s in silences})
        if not form.plain:
            rows += counts("exactly once", account_target(fleet.target_rows(), fleet.producer.sent), ())
    print_table(("what", "count", "bar"), [(what, f"{count:,}", bar) for what, count, bar in rows], "silence")
    for silence in silences:
        log(
            f"{silence.queries} queries, partition {silence.partition} silent for {60 * form.minutes:g} s: the others' "
            f"lag {silence.lag:.1f} s (bar: {MOST_LAG:g} s), its backlog read after {silence.recovered:.1f} s"
        )
    for failure in failures[:20]:
        log(f"query failed: {failure}")
    return not any(count for _, count, bar in rows if bar) and all(silence.lag <= MOST_LAG for silence in silences)
