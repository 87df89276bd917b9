"""Random lives of queries: what happens in them is drawn from a seed, and whatever that is, no event may be lost.

In a calm life everything is planned (joins, stops in order, transfers), and every event is written exactly once, unless
the strategy takes partitions by force.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.orders import Transfer
from spark_ehbalance.group.strategies import STRATEGIES
from storm.query import Kind, Query
from storm.world import Violation, World

PARTITIONS = 3

#: What may happen, and how often. "work" is some steps of a query on Spark.
CALM = {"work": 60, "time": 15, "events": 10, "stop": 3, "start": 10, "transfer": 4}
WILD = CALM | {"kill": 6, "unreadable": 2, "unwritable": 2, "unknown": 2, "heal": 4, "suspend": 3, "stalls": 1}

#: What is no fault.
_ORDINARY = frozenset({"work", "time", "events", "start", "heal"})

#: Seconds after the last fault within which everything is read: many lease durations, and the longest back-off of a
#: stalled partition twice.
_READ_WITHIN = 1500.0


class Happening(NamedTuple):
    """Something that happens to a query. Its details are drawn from `seed`, so that others may be left out."""

    what: str
    query: int
    seed: int


@dataclass(frozen=True)
class Life:
    """All that a seed decides."""

    seed: int
    calm: bool
    kinds: Sequence[Kind]
    happenings: Sequence[Happening]

    @classmethod
    def of(cls, seed: int) -> Life:
        rng = random.Random(seed)
        calm, strategy = rng.random() < 0.3, rng.choice(sorted(STRATEGIES))
        kinds = [
            Kind(
                owner,
                strategy,
                skips_known=rng.random() < 0.5,
                checkpoint_interval=0.0 if calm else rng.choice([0.0, 0.0, 10.0]),
            )
            for owner in "abc"[: rng.randint(1, 3)]
        ]
        odds = CALM if calm else WILD
        whats = rng.choices([*odds], [*odds.values()], k=rng.randint(20, 120))
        happenings = [Happening(what, rng.randrange(len(kinds)), rng.getrandbits(32)) for what in whats]
        return cls(seed, calm, kinds, happenings)

    @property
    def faults(self) -> Counter[str]:
        """How often each kind of fault happens."""
        return Counter(each.what for each in self.happenings if each.what not in _ORDINARY)


class Outcome(NamedTuple):
    """How a life ended: the violation, if there was one, and the story until then."""

    violation: str | None
    story: Sequence[str]


def live(life: Life) -> Outcome:
    """Live it to its end."""
    world = World(random.Random(life.seed), PARTITIONS)
    queries = [Query(world, kind) for kind in life.kinds]
    world.members += queries
    try:
        queries[0].start()
        for happening in life.happenings:
            _happen(world, queries, happening)
            _check_owners(world, queries)
        _read_rest(world, queries)
        repeated = sorted(event for event, times in world.written.items() if times > 1)
        if life.calm and repeated and not world.stolen:
            raise Violation(f"all moves were planned, and events were written more than once: {repeated[:10]}")
    except Violation as violation:
        return Outcome(str(violation), world.told)
    except (AssertionError, EhBalanceError, LookupError) as error:
        return Outcome(f"{type(error).__name__}: {error}", world.told)
    return Outcome(None, world.told)


def shortest(life: Life) -> Life:
    """The life with as few happenings as can be found of those that end in a violation: leaves out halves, quarters and
    so on, as long as it still does."""
    size = len(life.happenings) // 2
    while size:
        position = 0
        while position < len(life.happenings):
            rest = [*life.happenings[:position], *life.happenings[position + size :]]
            shorter = Life(life.seed, life.calm, life.kinds, rest)
            if live(shorter).violation:
                life = shorter
            else:
                position += size
        size //= 2
    return life


def _happen(world: World, queries: Sequence[Query], happening: Happening) -> None:
    query, what = queries[happening.query], happening.what
    world.rng = rng = random.Random(happening.seed)
    if what == "events":
        for partition in rng.sample(sorted(world.ends), rng.randint(1, PARTITIONS)):
            world.ends[partition] += rng.randint(1, 5)
    elif what == "time":
        world.pass_time(rng.choice([0.2, 1.0, 3.0, 8.0]))
    elif what == "start":
        if not query.running:
            query.start()
    elif not query.running:
        return
    elif what == "work":
        for _ in range(rng.randint(1, 8)):
            if not query.step():
                break
    elif what == "kill":
        query.kill()
    elif what == "stop":
        query.finish()
        query.stop()
    elif what == "suspend":
        world.tell(f"{query.kind.owner} is suspended")
        world.pass_time(rng.choice([10.0, 20.0, 40.0]), suspended=(query,))
    elif what == "transfer":
        _transfer(world, query, rng.choice(sorted(world.ends)))
    elif what == "stalls":
        query.stalling = rng.choice([0.0, 0.1, 0.3])
    else:
        query.trouble = None if what == "heal" else what
        world.tell(f"{query.kind.owner}: the lease table is {query.trouble or 'well'}")


def _transfer(world: World, to: Query, partition: str) -> None:
    operator = Author("operator", "")
    order = Transfer(by=operator, at_ms=world.clocks.wall_ms, partition=partition, to=to.kind.owner, timeout_ms=30_000)
    if world.commit([order]).accepted:
        world.tell(f"partition {partition} is to go to {to.kind.owner}")


def _check_owners(world: World, queries: Sequence[Query]) -> None:
    """Raise `Violation` if two members may plan one partition, unless it was taken from one of them by force."""
    owners: dict[str, tuple[str, int]] = {}
    for query in queries:
        for partition, holding in query.holdings().items():
            other, epoch = owners.setdefault(partition, (query.kind.owner, holding.epoch))
            stolen = (partition, min(epoch, holding.epoch) + 1) in world.stolen
            if other != query.kind.owner and not stolen:
                raise Violation(f"{other} and {query.kind.owner} may both plan partition {partition}")


def _read_rest(world: World, queries: Sequence[Query]) -> None:
    """Heal everything, start all queries, and read what is left. Raises `Violation` if that does not succeed."""
    world.tell("no more faults")
    world.rng = random.Random(0)
    for query in queries:
        query.trouble, query.stalling = None, 0.0
    for query in queries:
        if not query.running:
            query.start()
    for partition in world.ends:
        world.ends[partition] += 1
    give_up = world.now + _READ_WITHIN
    while unwritten := world.unwritten():
        if world.now > give_up:
            raise Violation(f"events were never written: {sorted(unwritten)[:10]}")
        world.pass_time(0.5)
        _check_owners(world, queries)
        for query in queries:
            for _ in range(12):
                if not query.step():
                    break
