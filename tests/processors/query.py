"""A query without Spark in a process of its own: `python -m tests.processors.query OWNER JSON FILE`.

It plans batches and reads them as Spark does, and appends a line with partition and sequence number to a file for each
event, until standard input ends or it is killed.
"""

from __future__ import annotations

import json
import sys
import threading

from spark_ehbalance.source.assembly import start_planner
from spark_ehbalance.source.offsets import StreamOffset, group_name
from spark_ehbalance.source.options import stream_options
from spark_ehbalance.source.range_reader import read_range
from tests.source.queries import Query


def main() -> None:
    owner, options, path = sys.argv[1], stream_options(json.loads(sys.argv[2])), sys.argv[3]
    query = Query(start_planner(options, owner, StreamOffset(owner, group=group_name(options.lease_table))), owner)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with open(path, "a") as seen:
        while not ended.wait(0.01):
            end = query.plan(options.max_events_per_trigger)
            if end is None:
                continue
            for wanted in query.run(end):
                for batch in read_range(options, wanted, owner, 0):
                    lines = (f"{wanted.partition} {each}\n" for each in batch.column("sequenceNumber").to_pylist())
                    seen.writelines(lines)
            seen.flush()
    query.stop()


if __name__ == "__main__":
    main()
