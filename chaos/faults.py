"""What is done to the queries and when, drawn from a seed. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

KILL_QUERY = "SIGKILL of a query"
KILL_PLANNER = "SIGKILL of a planner"
KILL_WORKER = "SIGKILL of the workers"
PAUSE_QUERY = "SIGSTOP of a query"
PAUSE_PLANNER = "SIGSTOP of a planner"
STOP = "orderly stop"
CANCEL = "query.stop()"
NEW = "query with a new checkpoint"
RESTART = "restart, same checkpoint"
DROP = "connections dropped"
BUSY = "server busy"
AWAY = "lease table away"
ADD = "partition added"

#: In the order of the table that is printed at the end; restarts follow from what ends a query.
KINDS = (KILL_QUERY, KILL_PLANNER, KILL_WORKER, PAUSE_QUERY, PAUSE_PLANNER, STOP, CANCEL, NEW, DROP, BUSY, AWAY, ADD)

#: What is done to one query; all others are done to the hub or to the lease table.
ON_A_QUERY = frozenset({KILL_QUERY, KILL_PLANNER, KILL_WORKER, PAUSE_QUERY, PAUSE_PLANNER, STOP, CANCEL})

_MOST_ADDED = 2

#: Seconds between two faults. They overlap: pauses and restarts take longer.
_GAP = (3.0, 6.0)


@dataclass(frozen=True)
class Step:
    """One fault, `at` seconds after the beginning. `victim` picks one of those that it can be done to, as a part of
    their number; `seconds` is how long it lasts, or how long a query that it ends stays away; `fresh`: what it ends
    comes back with a new checkpoint."""

    at: float
    kind: str
    victim: float
    seconds: float
    fresh: bool


def schedule(seed: int, seconds: float, lease_duration: float) -> list[Step]:
    """The faults of a run of so many seconds: every kind once, in any order, before any comes again."""
    rng = random.Random(seed)
    steps: list[Step] = []
    at, added, kinds = 0.0, 0, list[str]()
    while True:
        at += rng.uniform(*_GAP)
        if at >= seconds:
            return steps
        if not kinds:
            kinds = [kind for kind in KINDS if kind != ADD or added < _MOST_ADDED]
            rng.shuffle(kinds)
        kind = kinds.pop()
        added += kind == ADD
        if kind in (PAUSE_QUERY, PAUSE_PLANNER, AWAY):
            lasts = lease_duration * rng.uniform(1.3, 2.0)
        else:
            lasts = rng.uniform(0.5, 3.0)
        steps.append(Step(at, kind, rng.random(), lasts, rng.random() < 0.25))
