"""What the queries of a storm share: a clock, an event hub, a lease table, and what their sinks have written."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Protocol

from spark_ehbalance.eventhub.metadata import PartitionState
from spark_ehbalance.group.changes import Claim, Outcome, Stall, Steal, Transition, apply
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.member.membership import Clocks
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.query.protocol import HubReport

#: Partition and sequence number.
Event = tuple[str, int]

#: Seconds between two turns of a member: as close together as those of real ones may come, and much further apart.
_PAUSES = (0.05, 0.2, 0.5)


def _forces(change: Steal | Claim | Stall) -> bool:
    """Whether it takes a lease that has neither expired nor been given back by the owner's process."""
    return not isinstance(change, Claim) or change.overdue_handover is not None


class Violation(Exception):
    """Something that must never happen; says what."""


class Member(Protocol):
    """A process that takes turns while it is `running`."""

    @property
    def running(self) -> bool: ...
    def turn(self) -> bool: ...


class World:
    """`now` is in seconds, `story` is what has happened, in lines, and `faults` how often each fault has."""

    def __init__(self, rng: random.Random, partitions: int) -> None:
        self.rng = rng
        self.now = 1000.0
        self.table = Snapshot(Group("namespace", "hub", "$default"))
        self.ends = Counter({str(partition): 0 for partition in range(partitions)})
        self.members: list[Member] = []
        self.written: Counter[Event] = Counter()
        #: Partition and epoch of leases that were taken by force: the former owner learns that by its next look.
        self.stolen: set[tuple[str, int]] = set()
        self.story: list[str] = []
        self.faults: Counter[str] = Counter()

    @property
    def clocks(self) -> Clocks:
        return Clocks(self.now, round(self.now * 1000))

    @property
    def hub(self) -> HubReport:
        """What the hub says of all its partitions."""
        states = {partition: PartitionState(0, end, None, None) for partition, end in self.ends.items()}
        return HubReport(states, created_ms=1, connection=1.0)

    def note(self, line: str) -> None:
        self.story.append(f"{self.now:9.2f} s  {line}")

    def unwritten(self) -> set[Event]:
        """The events of the hub that no sink has."""
        events = {(partition, number) for partition, end in self.ends.items() for number in range(end)}
        return events - self.written.keys()

    def commit(self, changes: Iterable[Transition]) -> Outcome:
        """Write what is valid of `changes` into the table. Raises `Violation` if an epoch or checkpoint falls."""
        outcome = apply(self.table, changes)
        if outcome.after is outcome.before:
            return outcome
        outcome = replace(outcome, after=replace(outcome.after, version=self.table.version + 1), seconds=0.01)
        for partition, before in self.table.leases.items():
            after = outcome.after.leases[partition]
            if after.epoch < before.epoch:
                raise Violation(f"the epoch of partition {partition} has fallen from {before.epoch} to {after.epoch}")
            if before.checkpoint and after.checkpoint and after.checkpoint.next < before.checkpoint.next:
                raise Violation(f"the checkpoint of partition {partition} has fallen to {after.checkpoint.next}")
        self.table = outcome.after
        taken = (x.partition for x in outcome.accepted if isinstance(x, (Steal, Claim, Stall)) and _forces(x))
        self.stolen |= {(partition, self.table.leases[partition].epoch) for partition in taken}
        return outcome

    def pass_time(self, seconds: float, suspended: Collection[Member] = ()) -> None:
        """Let all members but those `suspended` take turns."""
        until = self.now + seconds
        while self.now < until:
            self.now += self.rng.choice(_PAUSES)
            for member in self.members:
                if member.running and member not in suspended:
                    member.turn()
