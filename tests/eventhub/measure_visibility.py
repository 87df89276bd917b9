"""Measures how soon a waiting query knows about an event: python -m tests.eventhub.measure_visibility PARTITIONS"""

from __future__ import annotations

import random
import statistics
import sys
import time

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.eventhub.watcher import HubWatcher
from spark_ehbalance.group.starting_positions import StartingPositions
from tests.query.support import HUB, hub_options

#: Number of measured events.
_EVENTS = 40


def main(partitions: int) -> None:
    """Measure like a query that is alone in its group."""
    with Emulator({HUB: partitions}) as emulator:
        watcher = HubWatcher(hub_options(emulator).connection, "$Default", StartingPositions.parse("latest"), 60.0)
        watcher.start()
        watcher.refresh()
        watcher.watch(watcher.partition_ids())
        waits = []
        for number in range(_EVENTS):
            partition = random.Random(number).randrange(partitions)
            before = watcher.states()[str(partition)].end
            time.sleep(random.Random(number).random())
            emulator.append(HUB, partition, [b"x"])
            begun = time.monotonic()
            while watcher.states()[str(partition)].end == before:
                time.sleep(0.002)
            waits.append(time.monotonic() - begun)
        watcher.stop()
    print(f"{partitions} partitions: median {statistics.median(waits):.2f} s, longest {max(waits):.2f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]))
