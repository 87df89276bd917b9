"""Probes stalled partitions, as `stalls` decides."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from spark_ehbalance.group.member.membership import Holding
from spark_ehbalance.group.position import Position
from spark_ehbalance.query.housekeeping import Housekeeping
from spark_ehbalance.query.stalls import Probe, answered, follow
from spark_ehbalance.text import logger

_LOG = logger(__name__)


#: As `HubWatcher.received`: from positions and owner levels to the ends of what was received.
Received = Callable[[Mapping[str, int], Mapping[str, int | None]], Mapping[str, int]]


class StallProbes:
    """The probes of one query. All calls come from one thread (Spark's).

    `owner_level` is that of the query's readers, by epoch. A probe without an event is repeated after `repeat` seconds.
    `changed` is set when one has ended.
    """

    def __init__(
        self, received: Received, owner_level: Callable[[int], int | None], repeat: float, changed: threading.Event
    ) -> None:
        self._received, self._owner_level, self._repeat, self._changed = received, owner_level, repeat, changed
        self._probes: Mapping[str, Probe] = {}
        self._answers = queue.SimpleQueue[tuple[Mapping[str, int], Mapping[str, int]]]()
        self._worker = Housekeeping()
        #: The monotonic time of the next probe of a partition that is owned.
        self.due = float("inf")

    def readable(
        self,
        holdings: Mapping[str, Holding],
        positions: Mapping[str, Position],
        *,
        at_once: bool = False,
        wait: bool = False,
    ) -> dict[str, int]:
        """Up to which sequence number each stalled partition of `holdings` may be read.

        Starts the probes that are due, with `at_once` without their back-off, and with `wait` returns after them.
        """
        self._take_answers()
        before, now = self._probes, time.monotonic()
        self._probes = follow(before, holdings, positions, now, at_once=at_once)
        for partition, probe in self._probes.items():
            if before.get(partition, probe._replace(stalled=0))[:2] != probe[:2]:
                _warn(partition, probe)
        if asked := {p: probe.position for p, probe in self._waiting(holdings).items() if probe.due <= now}:
            self._probes = answered(self._probes, asked, {}, float("inf"))
            job = partial(self._probe, asked, {p: self._owner_level(holdings[p].epoch) for p in asked})
            if wait:
                job()
                self._take_answers()
            else:
                self._worker.do(job)
        self.due = min((probe.due for probe in self._waiting(holdings).values()), default=float("inf"))
        return {p: probe.readable_to for p, probe in self._probes.items() if p in holdings}

    def _waiting(self, holdings: Mapping[str, Holding]) -> dict[str, Probe]:
        """The probes of owned partitions that have received nothing yet."""
        return {p: probe for p, probe in self._probes.items() if p in holdings and probe.end is None}

    def stop(self) -> None:
        """Start no more probes; does not wait for those that run."""
        self._worker.finish(0.0)

    def _take_answers(self) -> None:
        while not self._answers.empty():
            asked, ends = self._answers.get()
            self._probes = answered(self._probes, asked, ends, time.monotonic() + self._repeat)
            for partition, end in ends.items():
                _LOG.info("partition %s: delivers events again, and is read up to %d first", partition, end - 1)

    def _probe(self, asked: Mapping[str, int], owner_levels: Mapping[str, int | None]) -> None:
        ends: Mapping[str, int] = {}
        try:
            ends = self._received(asked, owner_levels)
        finally:
            self._answers.put((asked, ends))
            self._changed.set()


def _warn(partition: str, probe: Probe) -> None:
    _LOG.warning(
        "partition %s: stalled at sequence number %d, %d times in a row: the event hub has events there and delivered "
        "none for receiverTimeout. The query leaves it out, reads the others, and continues with it as soon as a probe "
        'receives an event. If that lasts, see "A partition stalls" in docs/operations.md',
        partition, probe.position, probe.stalled,
    )  # fmt: skip
