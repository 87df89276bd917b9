"""A streaming query without a JVM in a process of its own: `python -m tests.consumer.query_process OWNER OPTIONS FILE`.

OPTIONS are JSON. What its workers read from the hub becomes lines of FILE, "partition sequence-number". SIGTERM stops
it in order.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path

from spark_ehbalance.hub.rows import sequence_numbers
from spark_ehbalance.source.assembly import start_planner
from spark_ehbalance.source.offsets import StreamOffset, group_name
from spark_ehbalance.source.options import stream_options
from spark_ehbalance.source.range_reader import read_range
from tests.source.queries import Query


def main(owner: str, raw: dict[str, str], file: Path) -> None:
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    options = stream_options(raw)
    start = StreamOffset(owner, group=group_name(options.lease_table))
    query = Query(start_planner(options, owner, start), owner, start)
    with file.open("a") as out:
        while not stopped.is_set():
            end = query.plan()
            if end is None:
                stopped.wait(0.02)
                continue
            for each in query.planner.ranges(end):
                for rows in read_range(options, each, owner, each.epoch):
                    out.writelines(f"{each.partition} {number}\n" for number in sequence_numbers(rows).to_pylist())
            out.flush()
            query.finished = query.logged = end
        query.planner.finish(query.finished)
    query.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]))
