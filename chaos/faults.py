"""The schedule of faults, which is drawn from a seed. Without I/O."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

KILL_QUERY = "SIGKILL of a query"
KILL_PLANNER = "SIGKILL of a planner"
KILL_WORKER = "SIGKILL of the workers"
PAUSE_QUERY = "SIGSTOP of a query"
PAUSE_PLANNER = "SIGSTOP of a planner"
KILL_WRITTEN = "SIGKILL after the sink"
PAUSE_WRITE = "SIGSTOP before the sink reads"
PAUSE_COMMIT = "SIGSTOP before the sink's commit"
STOP = "graceful stop"
CANCEL = "query.stop()"
NEW = "query with a new checkpoint"
RESTART = "restart, same checkpoint"
DROP = "connections dropped"
BUSY = "server busy"
DETACH = "links detached"
OUTAGE = "lease table unreachable"
ADD = "partition added"

#: All kinds, in the order of the final table. Restarts are not scheduled as faults: they follow the end of a query.
KINDS = (
    KILL_QUERY, KILL_PLANNER, KILL_WORKER, KILL_WRITTEN, PAUSE_QUERY, PAUSE_PLANNER, PAUSE_WRITE, PAUSE_COMMIT,
    STOP, CANCEL, NEW, DROP, BUSY, DETACH, OUTAGE, ADD,
)  # fmt: skip

#: Faults that wait until the query reaches a step of its sink → that step.
SINK_STEPS = {KILL_WRITTEN: "written", PAUSE_WRITE: "Write", PAUSE_COMMIT: "Commit"}

PAUSES = frozenset({PAUSE_QUERY, PAUSE_PLANNER, PAUSE_WRITE, PAUSE_COMMIT})

#: The faults that affect one query. All others affect the hub or the lease table.
QUERY_FAULTS = frozenset({KILL_QUERY, KILL_PLANNER, KILL_WORKER, PAUSE_QUERY, PAUSE_PLANNER, STOP, CANCEL, *SINK_STEPS})

_MAX_ADDED = 2

#: Minimum and maximum seconds from one fault to the next. Faults overlap, because pauses and restarts take longer.
_GAP = (3.0, 6.0)


@dataclass(frozen=True)
class Step:
    """One fault, `at` seconds after the beginning.

    `victim`, from 0 to 1, selects one of the possible queries. `seconds` is how long the fault lasts, or, if it ends a
    query, how long the query stays stopped. If `fresh`, that query restarts with a new checkpoint.
    """

    at: float
    kind: str
    victim: float
    seconds: float
    fresh: bool


def schedule(seed: int, seconds: float, lease_duration: float, allowed_kinds: Sequence[str] = KINDS) -> list[Step]:
    """The faults of a run of `seconds`. Every kind occurs once, in random order, before any kind is repeated."""
    rng = random.Random(seed)
    steps: list[Step] = []
    at, added, kinds = 0.0, 0, list[str]()
    while True:
        at += rng.uniform(*_GAP)
        if at >= seconds:
            return steps
        if not kinds:
            kinds = [kind for kind in allowed_kinds if kind != ADD or added < _MAX_ADDED]
            rng.shuffle(kinds)
        kind = kinds.pop()
        added += kind == ADD
        if kind in (PAUSE_QUERY, PAUSE_PLANNER, OUTAGE):
            lasts = lease_duration * rng.uniform(1.3, 2.0)
        elif kind in (PAUSE_WRITE, PAUSE_COMMIT):  # long enough for another query to write meanwhile
            lasts = lease_duration * rng.uniform(2.0, 3.0)
        else:
            lasts = rng.uniform(0.5, 3.0)
        steps.append(Step(at, kind, rng.random(), lasts, rng.random() < 0.25))
