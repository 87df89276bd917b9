"""Plain consumers and streaming queries in one group with the emulator, each in a process of its own."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType

from spark_ehbalance.emulator import Emulator
from tests.consumers.consumer_process import INTERVAL
from tests.members import AnyMember, Member, Members, repeating
from tests.query.queries import Event, Group
from tests.query.support import HUB
from tests.waiting import wait_until

PARTITIONS = 12

#: Everybody's lease duration in seconds.
LEASE = 3


class Mixed(Members):
    """A context manager: a group of processes, and a publisher that does not stop before `everything_was_read`."""

    def __init__(self, emulator: Emulator, path: Path) -> None:
        self.group = Group(emulator, path, PARTITIONS)
        self.group.raw["leaseDuration"] = f"{LEASE}s"
        self.folder = path
        self.members = []
        self._publishing = contextlib.ExitStack()

    def __enter__(self) -> Mixed:
        self._publishing.enter_context(repeating(0.1, lambda: self.group.append(1, PARTITIONS)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
        self._publishing.close()

    def consumer(self, name: str, kind: str) -> Member:
        hub, table = self.group.emulator.connection_string(HUB), str(self.group.table)
        command = (
            "-m",
            "tests.consumers.consumer_process",
            kind,
            hub,
            table,
            str(self.folder / name),
            str(LEASE),
        )
        return self.start(name, sys.executable, *command)

    def query(self, name: str) -> AnyMember:
        return self.start_query(name, self.options)

    @property
    def options(self) -> dict[str, str]:
        return {name: str(value) for name, value in (self.group.raw | {"leaseTable": self.group.table}).items()}

    def epochs(self) -> dict[str, int]:
        return {partition: lease.epoch for partition, lease in self.group.leases().items()}

    def wait_shares(self, *counts: int) -> None:
        def shared() -> bool:
            if not self.group.exists():
                return False
            owners = Counter(lease.owner for lease in self.group.leases().values())
            return None not in owners and sorted(owners.values()) == sorted(counts)

        wait_until(shared, f"the shares are {counts}", timeout=90)

    def duplicates(self) -> list[Event]:
        return [event for event, times in self.seen().items() if times > 1]

    def everything_was_read(self) -> None:
        self._publishing.close()
        everything = self.group.everything()
        wait_until(lambda: not everything - self.seen(), "every event was read")


def share_through_everything(mixed: Mixed, *kinds: str) -> None:
    """Two consumers of these `kinds` and two queries come, stay, are killed and stopped, one of each; the consumer that
    comes later is of the first kind.

    Checks who has what, that every event was read, and that what was read twice was read first by a member that was
    killed.
    """
    queries, consumers = (
        [mixed.query(f"query{number}") for number in (1, 2)],
        [mixed.consumer(f"consumer{number}", kind) for number, kind in enumerate(kinds, 1)],
    )
    mixed.wait_shares(3, 3, 3, 3)
    before = mixed.epochs()
    threading.Event().wait(10 * INTERVAL)
    assert mixed.epochs() == before, "nothing moves in a balanced group"
    assert not mixed.duplicates(), "what moves by plan is read once"

    killed = (queries[0], consumers[0])
    for member in killed:
        member.kill()
    mixed.wait_shares(6, 6)

    late = (mixed.query("query3"), mixed.consumer("consumer3", kinds[0]))
    mixed.wait_shares(3, 3, 3, 3)
    for member in late:
        member.stop()
    mixed.wait_shares(6, 6)
    mixed.everything_was_read()

    for member in mixed.members:
        assert len({*member.seen()}) == len(member.seen()), "only a move makes a duplicate"
    unfinished = {event for each in mixed.members if each in killed for event in each.seen()}
    assert unfinished.issuperset(mixed.duplicates()), "who is not killed finishes before it hands over"
    print(f"of {sum(mixed.group.everything().values())} events {len(mixed.duplicates())} were read twice")
