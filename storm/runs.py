"""Random runs of queries: what happens in them is drawn from a seed, and whatever that is, no event may be lost.

In a calm run everything is planned (joins, stops in order, transfers), and every event is written exactly once, unless
the strategy takes partitions by force.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.orders import Transfer
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.strategies import STRATEGIES
from spark_ehbalance.query.positions import of_queries
from storm.query import Profile, Query
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


class Action(NamedTuple):
    """Something that happens to a query. Its details are drawn from `seed`, so that others may be left out."""

    what: str
    query: int
    seed: int


@dataclass(frozen=True)
class Run:
    """All that a seed decides."""

    seed: int
    calm: bool
    profiles: Sequence[Profile]
    actions: Sequence[Action]

    @classmethod
    def from_seed(cls, seed: int) -> Run:
        rng = random.Random(seed)
        calm, strategy = rng.random() < 0.3, rng.choice(sorted(STRATEGIES))
        profiles = [
            Profile(
                owner,
                strategy,
                skips_known=rng.random() < 0.5,
                checkpoint_interval=0.0 if calm else rng.choice([0.0, 0.0, 10.0]),
                max_owned=None if owner == "a" else rng.choice([None, None, 1, 2]),  # one can own all
                max_stall=None if calm else rng.choice([None, 15.0]),
                available_now=rng.random() < 0.25,
            )
            for owner in "abc"[: rng.randint(1, 3)]
        ]
        odds = CALM if calm else WILD
        whats = rng.choices([*odds], [*odds.values()], k=rng.randint(20, 120))
        actions = [Action(what, rng.randrange(len(profiles)), rng.getrandbits(32)) for what in whats]
        return cls(seed, calm, profiles, actions)


class Ending(NamedTuple):
    """How a run ended: the violation, if there was one, the story until then, and how often each fault happened."""

    violation: str | None
    story: Sequence[str]
    faults: Counter[str]


def play(run: Run) -> Ending:
    """Play it to its end."""
    world = World(random.Random(run.seed), PARTITIONS)
    queries = [Query(world, profile) for profile in run.profiles]
    world.members += queries
    violation = None
    try:
        queries[0].start()
        for action in run.actions:
            _act(world, queries, action)
            _check_owners(world, queries)
            _check_positions(world, queries)
        _read_rest(world, queries)
        repeated = sorted(event for event, times in world.written.items() if times > 1)
        if run.calm and repeated and not world.stolen:
            raise Violation(f"all moves were planned, and events were written more than once: {repeated[:10]}")
    except (Violation, AssertionError, EhBalanceError, LookupError) as error:
        violation = str(error) if isinstance(error, Violation) else repr(error)
    return Ending(violation, world.story, world.faults)


def shortest(run: Run) -> Run:
    """The run with as few actions as can be found of those that end in a violation: leaves out halves, quarters and
    so on, as long as it still does."""
    size = len(run.actions) // 2
    while size:
        position = 0
        while position < len(run.actions):
            rest = [*run.actions[:position], *run.actions[position + size :]]
            shorter = Run(run.seed, run.calm, run.profiles, rest)
            if play(shorter).violation:
                run = shorter
            else:
                position += size
        size //= 2
    return run


def _act(world: World, queries: Sequence[Query], action: Action) -> None:
    query, what = queries[action.query], action.what
    world.rng = rng = random.Random(action.seed)
    if what == "events":
        for partition in rng.sample(sorted(world.ends), rng.randint(1, PARTITIONS)):
            world.ends[partition] += rng.randint(1, 5)
    elif what == "time":
        world.pass_time(rng.choice([0.2, 1.0, 3.0, 8.0, 20.0]))
    elif what == "start":
        if not query.running:
            query.start()
    elif query.running:
        if what not in _ORDINARY:
            world.faults[what] += 1
        _act_on(world, query, what, rng)


def _act_on(world: World, query: Query, what: str, rng: random.Random) -> None:
    if what == "work":
        for _ in range(rng.randint(1, 8)):
            if not query.step():
                break
    elif what == "kill":
        query.kill()
    elif what == "stop":
        query.finish()
        query.stop()
    elif what == "suspend":
        world.note(f"{query.profile.owner} is suspended")
        world.pass_time(rng.choice([10.0, 20.0, 40.0]), suspended=(query,))
    elif what == "transfer":
        _transfer(world, query, rng.choice(sorted(world.ends)))
    elif what == "stalls":
        query.stalling = rng.choice([0.0, 0.1, 0.3])
    else:
        query.trouble = None if what == "heal" else what
        world.note(f"{query.profile.owner}: the lease table is {query.trouble or 'well'}")


def _transfer(world: World, to: Query, partition: str) -> None:
    operator = Author("operator", "")
    order = Transfer(
        by=operator, at_ms=world.clocks.wall_ms, partition=partition, to=to.profile.owner, timeout_ms=30_000
    )
    if world.commit([order]).accepted:
        world.note(f"partition {partition} is to go to {to.profile.owner}")


def _check_owners(world: World, queries: Sequence[Query]) -> None:
    """Raise `Violation` if two members may plan one partition, unless it was taken from one of them by force."""
    owners: dict[str, tuple[str, int]] = {}
    for query in queries:
        for partition, holding in query.holdings().items():
            other, epoch = owners.setdefault(partition, (query.profile.owner, holding.epoch))
            stolen = (partition, min(epoch, holding.epoch) + 1) in world.stolen
            if other != query.profile.owner and not stolen:
                raise Violation(f"{other} and {query.profile.owner} may both plan partition {partition}")


def _check_positions(world: World, queries: Sequence[Query]) -> None:
    """Raise `Violation` if a lease table made of the checkpoints of some queries would skip an event."""
    unwritten = world.unwritten()
    logs = {query.profile.owner: [query.log] for query in queries if query.log}
    for count in range(1, len(logs) + 1 if unwritten else 1):
        for owners in itertools.combinations(logs, count):
            named = of_queries({owner: logs[owner] for owner in owners}, None).named
            for partition, number in unwritten:
                position = named.get(partition)
                if isinstance(position, Position) and number < position.next:
                    raise Violation(
                        f"by the checkpoints of {owners} partition {partition} continues at {position.next}, and event "
                        f"{number} was never written"
                    )


def _read_rest(world: World, queries: Sequence[Query]) -> None:
    """Heal everything, start all queries, and read what is left. Raises `Violation` if that does not succeed."""
    world.note("no more faults")
    world.rng = random.Random(0)
    for query in queries:
        query.trouble, query.stalling = None, 0.0
    for partition in world.ends:
        world.ends[partition] += 1
    _start_all(queries)
    give_up = world.now + _READ_WITHIN
    while unwritten := world.unwritten():
        if world.now > give_up:
            raise Violation(f"events were never written: {sorted(unwritten)[:10]}")
        world.pass_time(2.0)
        _start_all(queries)
        _check_owners(world, queries)
        for query in queries:
            for _ in range(12):
                if not query.running or not query.step():
                    break


def _start_all(queries: Sequence[Query]) -> None:
    for query in queries:
        if not query.running:
            query.start()
