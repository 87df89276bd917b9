"""Plain consumers and streaming queries in one group with the emulator, each in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from spark_ehbalance.emulator import Emulator
from tests.consumer.consumer_process import INTERVAL
from tests.source.queries import Group
from tests.source.support import HUB
from tests.waiting import wait_until

PARTITIONS = 12

#: These strategies take partitions without their owner's help, who may have begun to read the same events.
STEALING = {"balanced", "eph", "greedy"}

#: Options that strategies need in tests: short times, as the defaults would take minutes.
PARAMETERS = {
    "race": {"race.minimumGrab": "1 s", "race.delayPerLease": "100 ms"},
    "transfer": {"transfer.hitCount": "1", "transfer.coolDown": "2 s"},
}


class Mixed:
    """A group of processes, and a publisher that does not stop before `everything_was_read`."""

    def __init__(self, emulator: Emulator, path: Path, lease: int = 3) -> None:
        """`lease` is everybody's lease duration in seconds."""
        self.group = Group(emulator, path, PARTITIONS)
        self.group.raw["leaseDuration"] = f"{lease}s"
        self._lease = lease
        self._path = path
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._stop = threading.Event()
        self._publisher = threading.Thread(target=self._publish)
        self._publisher.start()

    def _publish(self) -> None:
        while not self._stop.wait(0.1):
            self.group.append(1, PARTITIONS)

    def consumer(self, name: str, kind: str) -> None:
        hub = self.group.emulator.connection_string(HUB)
        self._start(
            name, "consumer_process", kind, hub, str(self.group.table), str(self._path / name), str(self._lease)
        )

    def query(self, name: str) -> None:
        self._start(name, "query_process", name, json.dumps(self.options), str(self._path / name))

    @property
    def options(self) -> dict[str, str]:
        """The queries' options."""
        return {name: str(value) for name, value in (self.group.raw | {"leaseTable": self.group.table}).items()}

    def _start(self, name: str, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", f"tests.consumer.{module}", *arguments]
        self._running[name] = subprocess.Popen(command, stderr=(self._path / f"{name}.log").open("w"))

    def end(self, name: str, how: signal.Signals) -> None:
        process = self._running.pop(name)
        process.send_signal(how)
        process.wait(60)

    def signal(self, name: str, what: signal.Signals) -> None:
        self._running[name].send_signal(what)

    def epochs(self) -> dict[str, int]:
        return {partition: lease.epoch for partition, lease in self.group.leases().items()}

    def wait_shares(self, *counts: int) -> None:
        """Wait until the owners have so many partitions."""

        def shared() -> bool:
            if not self.group.exists():
                return False
            owners = Counter(lease.owner for lease in self.group.leases().values())
            return None not in owners and sorted(owners.values()) == sorted(counts)

        wait_until(shared, f"the shares are {counts}", timeout=90)

    def seen(self) -> dict[str, Counter[tuple[str, int]]]:
        """What each process has read."""
        found = {}
        for file in (each for each in self._path.iterdir() if each.is_file() and not each.suffix):
            lines = file.read_text().splitlines(keepends=True)
            whole = [line.split() for line in lines if line.endswith("\n")]
            found[file.name] = Counter((partition, int(number)) for partition, number in whole)
        return found

    def duplicates(self) -> list[tuple[str, int]]:
        return [event for event, times in sum(self.seen().values(), Counter()).items() if times > 1]

    def everything_was_read(self) -> None:
        self._stop.set()
        self._publisher.join()
        everything = self.group.everything()
        wait_until(lambda: not everything - sum(self.seen().values(), Counter()), "every event was read")

    def close(self) -> None:
        self._stop.set()
        for process in self._running.values():
            process.kill()
            process.wait()
        self._publisher.join()


def share_through_everything(mixed: Mixed, *kinds: str, abrupt: Collection[str] = ()) -> list[tuple[str, int]]:
    """Two consumers of these `kinds` and two queries come, stay, are killed and stopped, one of each; the consumer that
    comes later is of the first kind.

    Checks who has what, that every event was read, and that what was read twice was read first by a member that was
    killed or is one of the `abrupt`. Returns what was read twice.
    """
    for number, kind in enumerate(kinds, 1):
        mixed.query(f"query{number}")
        mixed.consumer(f"consumer{number}", kind)
    mixed.wait_shares(3, 3, 3, 3)
    before = mixed.epochs()
    threading.Event().wait(10 * INTERVAL)
    assert mixed.epochs() == before, "nothing moves in a balanced group"
    assert not mixed.duplicates(), "what moves by plan is read once"

    mixed.end("query1", signal.SIGKILL)
    mixed.end("consumer1", signal.SIGKILL)
    mixed.wait_shares(6, 6)

    mixed.query("query3")
    mixed.consumer("consumer3", kinds[0])
    mixed.wait_shares(3, 3, 3, 3)
    mixed.end("query3", signal.SIGTERM)
    mixed.end("consumer3", signal.SIGTERM)
    mixed.wait_shares(6, 6)
    mixed.everything_was_read()

    seen = mixed.seen()
    assert all(times == 1 for each in seen.values() for times in each.values()), "only a move makes a duplicate"
    duplicates = mixed.duplicates()
    unfinished = set().union(*(seen[name] for name in ("query1", "consumer1", *abrupt)))
    assert unfinished.issuperset(duplicates), "who is not killed finishes before it hands over"
    return duplicates
