"""Plans: a group of queries and a list of faults. A seed determines all of it in advance, so that any part of the list
can be run without the rest."""

from __future__ import annotations

import random
from dataclasses import dataclass

from spark_ehbalance.group.strategies import STRATEGIES

#: The times at which faults begin and end, and the time allowed for recovery after them, in seconds.
FAULTS_BEGIN, FAULTS_END, RECOVERY = 20.0, 600.0, 1500.0

#: Stages at which a query's process can be killed or suspended, in the order in which a batch goes through them.
STAGES = ("starting", "idle", "planning", "planned", "logged", "reading", "writing", "written", "finished")

SINKS = ("append", "numbered", "once")

#: Kind of fault → weight. For each kind, `World` has a method.
KINDS = {
    "kill": 3,
    "kill_at": 8,
    "stop": 3,
    "leave": 1,
    "twin": 2,
    "suspend": 4,
    "suspend_at": 4,
    "suspend_planner": 3,
    "suspend_spark_at": 3,
    "suspend_in_commit": 2,
    "unreachable": 3,
    "read_only": 2,
    "all_read_only": 2,
    "outage": 2,
    "bad_commits": 4,
    "slow_store": 1,
    "clock": 1,
    "hub_unreachable": 2,
    "hub_outage": 1,
    "silence": 3,
    "retention": 2,
    "burst": 3,
    "grow": 1,
    "task_fails": 3,
    "sink_fails": 5,
    "transfer": 2,
    "pin": 2,
    "unpin": 1,
    "drain": 1,
    "undrain": 1,
    "seek": 2,
}

#: Weights of the faults that befall a query while another process of it starts or has just joined.
_KINDS_AT_STARTS = KINDS | {
    "kill_at": 16,
    "stop": 5,
    "twin": 10,
    "suspend": 6,
    "suspend_planner": 8,
    "suspend_in_commit": 6,
    "unreachable": 5,
    "outage": 3,
    "bad_commits": 10,
    "transfer": 4,
    "seek": 8,
}

#: From this seed on, every fifth group has the `_KINDS_AT_STARTS`. Below it, the seeds of past bugs still find them.
_FIRST_WITH_STARTS = 100_000

#: From this seed on, the queries of every fifth group differ in their lease durations.
_FIRST_WITH_DURATIONS = 200_000

#: Rare kinds of faults: people restore, copy, delete or recreate one part without the others.
TAMPERING = ("table_restored", "table_deleted", "checkpoint_restored", "checkpoint_copied", "hub_recreated")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of `kind` that begins at the time `at` and lasts `seconds`. `pick` selects its target; `choice` and
    `luck`, from 0 to 1, select details."""

    at: float
    kind: str
    pick: int
    seconds: float
    choice: float

    @property
    def luck(self) -> float:
        return self.choice * 1000 % 1


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A query with `pause` seconds between triggers. With `available_now`, it ends when it has read everything, and is
    started again."""

    owner: str
    strategy: str
    sink: str
    pause: float
    limit: int | None
    max_owned: int | None
    reports: bool  # the end of each batch immediately, as with `register`
    available_now: bool
    one_batch: bool  # Spark is 4.0 or 4.1: a run of AvailableNow has only one batch
    fails_on_loss: bool
    lease_duration: float


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    partitions: int
    rate: float  # events per second of a partition
    batch_seconds: float
    latency: float
    lease_duration: float
    balance_interval: float
    handover_timeout: float
    max_stall: float | None
    receiver_timeout: float
    queries: tuple[QueryPlan, ...]
    faults: tuple[Fault, ...]


def _skip(rng: random.Random) -> random.Random:
    """Skip a number that an earlier version used, so that the seeds of past bugs still find them."""
    rng.choice(range(3))
    return rng


def draw(seed: int) -> Plan:
    """The group and the faults of `seed`."""
    rng = random.Random(f"storm {seed}")
    partitions = rng.randint(1, rng.choice((2, 4, 8, 16)))
    strategies = rng.choices(sorted(STRATEGIES), k=rng.choice((1, 1, 1, 2, 3)))
    triggered, limited = rng.choice((0.0, 0.0, 0.3, 1.0)), rng.random() < 0.2
    balance_interval = rng.choice((3.0, 5.0, 10.0, 10.0))
    lease_duration = balance_interval * rng.choice((1.5, 2.0, 3.0, 3.0, 4.0))
    rate, batch_seconds = rng.choice((0.2, 1.0, 5.0)), rng.choice((0.5, 2.0, 5.0, 15.0))
    durations = random.Random(f"durations {seed}")
    differ = seed >= _FIRST_WITH_DURATIONS and durations.random() < 0.2
    enough = 20 + int(20 * rate * partitions * (batch_seconds + 5))  # for a single query to catch up
    queries = tuple(
        QueryPlan(
            f"query-{number}",
            rng.choice(strategies),
            rng.choice(SINKS),
            pause=rng.choice((0.1, 1.0, 5.0)),
            limit=rng.choice((None, None, enough)),
            max_owned=rng.choice((None, 1, 3, 8)) if limited else None,
            reports=_skip(rng).random() < 0.7,
            available_now=rng.random() < triggered,
            one_batch=rng.random() < 0.3,
            fails_on_loss=rng.random() < 0.5,
            lease_duration=lease_duration * (durations.choice((0.7, 1.0, 2.0, 5.0)) if differ else 1.0),
        )
        for number in range(rng.randint(1, rng.choice((2, 3, 6))))
    )
    pace, at, faults = rng.choice((2.0, 4.0, 8.0)), FAULTS_BEGIN, list[Fault]()
    by_weight = _KINDS_AT_STARTS if seed >= _FIRST_WITH_STARTS and seed % 5 == 0 else KINDS
    kinds, weights = list(by_weight), list(by_weight.values())
    while (at := at + rng.expovariate(1 / pace)) < FAULTS_END:
        (kind,) = rng.choices(kinds, weights)
        seconds = rng.uniform(1.0, rng.choice((3.0, 30.0, 120.0)))
        faults.append(Fault(at, kind, rng.randrange(1 << 16), min(seconds, FAULTS_END - at), rng.random()))
    faults = sorted([*faults, *_draw_tampering(seed)], key=lambda fault: fault.at)
    return Plan(
        seed,
        partitions,
        rate,
        batch_seconds,
        rng.choice((0.001, 0.01, 0.05, 0.1)),
        lease_duration,
        balance_interval,
        rng.choice((lease_duration, 5.0, 30.0)),
        rng.choice((None, None, None, 45.0)),
        rng.choice((5.0, 20.0)),
        queries,
        tuple(faults),
    )


def _draw_tampering(seed: int) -> list[Fault]:
    """Draw up to three faults of `TAMPERING`, in every fifth group."""
    rng = random.Random(f"tampering {seed}")
    count = rng.choice((0, 0, 0, 0, rng.randint(1, 3)))
    return [
        Fault(
            rng.uniform(60, FAULTS_END), rng.choice(TAMPERING), rng.randrange(1 << 16), rng.uniform(1, 60), rng.random()
        )
        for _ in range(count)
    ]
