"""A planner in a separate process, which a test can kill: `python -m tests.query.member OWNER OPTIONS-AS-JSON`.

As soon as it has joined the group, it prints the first batch that it plans as JSON, and then stays idle.
"""

from __future__ import annotations

import json
import sys
import threading

from spark_ehbalance.query.assembly import start_planner
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.query.options import stream_options
from spark_ehbalance.query.query_metrics import export_metrics

if __name__ == "__main__":
    owner, raw = sys.argv[1], json.loads(sys.argv[2])
    options = stream_options(raw)
    planner = start_planner(options, owner)
    exporters = export_metrics(options, planner)
    print(json.dumps(planner.next_batch(StreamOffset(owner), None).to_json()), flush=True)
    threading.Event().wait(60)
