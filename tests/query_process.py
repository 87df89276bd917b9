"""A query without Spark in a separate process: `python -m tests.query_process OWNER OPTIONS FILE`.

OPTIONS are JSON. It plans and reads batches like Spark and appends a line with partition and sequence number
to FILE for each event, until standard input ends or it is killed.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from spark_ehbalance.query.options import stream_options
from tests.reading_query import ReadingQuery


def main(owner: str, raw: dict[str, str], file: Path) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    options = stream_options(raw)
    query, written = ReadingQuery(options, owner), 0
    with file.open("a") as out:
        while not ended.is_set():
            if not query.step(options.max_events_per_trigger):
                ended.wait(0.02)
            out.writelines(f"{partition} {number}\n" for partition, number in query.seen[written:])
            out.flush()
            written = len(query.seen)
        query.planner.finish(query.finished)
    query.stop()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]))
