"""A query without Spark in a process of its own: `python -m tests.query_process OWNER OPTIONS FILE`.

OPTIONS are JSON. It plans batches and reads them as Spark does, and appends a line with partition and sequence number
to FILE for each event, until standard input ends or it is killed.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from spark_ehbalance.hub.rows import sequence_numbers
from spark_ehbalance.source.assembly import start_planner
from spark_ehbalance.source.offsets import StreamOffset, group_name
from spark_ehbalance.source.options import stream_options
from spark_ehbalance.source.range_reader import read_range
from spark_ehbalance.stores.base import SHARED_LEVEL
from tests.source.queries import Query


def main(owner: str, raw: dict[str, str], file: Path) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    options = stream_options(raw)
    start = StreamOffset(owner, group=group_name(options.lease_table))
    query = Query(start_planner(options, owner, start), owner, start)
    with file.open("a") as out:
        while not ended.is_set():
            end = query.plan(options.max_events_per_trigger)
            if end is None:
                ended.wait(0.02)
                continue
            for each in query.planner.ranges(end):
                level = each.epoch if options.keeps_all else SHARED_LEVEL
                for rows in read_range(options, each, owner, level):
                    out.writelines(f"{each.partition} {number}\n" for number in sequence_numbers(rows).to_pylist())
            out.flush()
            query.finished = query.logged = end
        query.planner.finish(query.finished)
    query.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]))
