"""Builds views of a snapshot, and a member that decides on given snapshots."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from spark_ehbalance.group.changes import Heartbeat, apply
from spark_ehbalance.group.expiry import Observation, Observations
from spark_ehbalance.group.model import Author
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.group.strategies import PARAMETERS, Decision, NamedStrategy, View


def view_of(
    snapshot: Snapshot,
    me: str,
    *,
    live: Iterable[str] | None = None,
    expired: Iterable[str] = (),
    overdue: Iterable[str] = (),
    recently_moved: Iterable[str] = (),
    pinned: Iterable[str] = (),
    seed: int = 1,
    now: float = 0.0,
    observations: Observations | None = None,
    **more: Any,
) -> View:
    """The view that `me` has of `snapshot`. By default, all members are live and no partition moved recently."""
    return View(
        me=Author(me, "1"),
        at_ms=0,
        snapshot=snapshot,
        expired=frozenset(expired),
        live=frozenset(snapshot.members if live is None else live),
        rng=random.Random(seed),
        overdue=frozenset(overdue),
        pinned=frozenset(pinned),
        now=now,
        observations=replace(observations or Observations(), epochs=dict.fromkeys(recently_moved, Observation(now))),
        **more,
    )


class Observer:
    """A member with memory, observations and a clock that decides with the strategy `name`."""

    def __init__(self, name: str, me: str, parameters: dict[str, Any]) -> None:
        self.me = Author(me, "1")
        self.now = 0.0
        self._strategy = NamedStrategy(name, PARAMETERS[name](**parameters))
        self._observations = Observations()
        self._memory: Any = None

    def decide_at(self, now: float, snapshot: Snapshot, **view: Any) -> Decision:
        """The decision on `snapshot` at time `now`, in seconds."""
        self.now = now
        self._observations = self._observations.updated(snapshot, now)
        seen = {"seed": 0, "now": now, "observations": self._observations, "memory": self._memory} | view
        decision = self._strategy(view_of(snapshot, self.me.id, **seen))
        self._memory = decision.memory
        return decision


def heartbeats(snapshot: Snapshot, *but: str) -> Snapshot:
    """`snapshot` after a heartbeat from every member except `but`."""
    alive = [Heartbeat(by=Author(id, "1"), at_ms=0) for id in snapshot.members if id not in but]
    return apply(snapshot, alive).after
