"""Explores all states of the smallest groups: `python -m storm.exhaustive`. Prints a violation with its shortest
story."""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from math import inf
from multiprocessing import Pool
from typing import Any, NamedTuple

from spark_ehbalance.errors import EhBalanceError
from storm.exhaustive.actions import PASSES, actions, check_owners, has_settled, settle, without_faults
from storm.exhaustive.equivalence import key
from storm.exhaustive.state import Budget, State, Violation


class Case(NamedTuple):
    """A group to explore. `members` contains the member's name of each concurrent process. `left` bounds the events
    that can happen; they begin at the start, or, if `settled`, after the group has settled."""

    members: str
    partitions: int
    left: Budget
    settled: bool = False

    def __str__(self) -> str:
        bounds = ", ".join(f"{count} {what}" for what, count in self.left._asdict().items() if count != 0)
        begin = "settled, then" if self.settled else "not started,"
        return f"{'+'.join(self.members)} × {self.partitions}, {begin} {bounds or 'kills'}"


class CaseResult(NamedTuple):
    """The result of a case. If `complete`, all states were explored, otherwise those up to `depth`. `story` ends with a
    violation; it is empty if there was none."""

    case: Case
    states: int
    transitions: int
    depth: int
    complete: bool
    seconds: float
    story: Sequence[str]


CASES = [
    Case("aa", 1, Budget(starts=2)),
    Case("ab", 1, Budget(starts=2)),
    Case("ab", 1, Budget(starts=0), settled=True),
    Case("ab", 1, Budget(starts=0, delays=1), settled=True),
    Case("ab", 1, Budget(starts=0, faults=1), settled=True),
    Case("ab", 1, Budget(starts=0, batches=1, requests=2), settled=True),
    Case("abc", 2, Budget(starts=0), settled=True),
    Case("abc", 2, Budget(starts=1, delays=1, faults=1), settled=True),
]

#: Maximum seconds per case. All cases together then take about 20 minutes on two cores.
_MAX_SECONDS = 270.0


def explore(case: Case, depth: float = inf, seconds: float = inf) -> CaseResult:
    """Visit all states in breadth-first order, until the first violation, after `depth` actions, or after `seconds`."""
    began, search = time.monotonic(), _Search()
    first = State.first(case.members, case.partitions, case.left)
    story = search.run(settle(first) if case.settled else first, depth, began + seconds)
    counts = len(search.origins), search.transitions, search.depth
    return CaseResult(case, *counts, search.complete, time.monotonic() - began, story)


class _Search:
    """A breadth-first search. `origins` maps a state to its predecessor, and the action that led from there. States are
    represented by numbers."""

    def __init__(self) -> None:
        self.origins: dict[int, tuple[int | None, str]] = {}
        self.transitions = self.depth = 0
        self.complete = False
        #: State → the next state if there are no more faults. Below: states in which the group waits, but is unsettled.
        self._next: dict[int, int] = {}
        self._unsettled: set[int] = set()

    def run(self, first: State, depth: float, until: float) -> list[str]:
        """Run the search. Returns the story of a violation, or an empty list."""
        root = key(first, {})
        self.origins[root] = (None, "")
        states = [(root, first)]
        while states and self.depth < depth:
            following = []
            for number, state in states:
                if time.monotonic() > until:
                    return []
                try:
                    for label, reached, after in self._successors(number, state):
                        if reached not in self.origins:
                            self.origins[reached] = (number, sys.intern(label))
                            following.append((reached, after))
                except (Violation, AssertionError, EhBalanceError, LookupError) as error:
                    return [*self._find_story(number), f"violation: {error or repr(error)}"]
            states, self.depth = following, self.depth + 1
        self.complete = not states
        stuck = self._find_stuck() if self.complete else None
        return [] if stuck is None else [*self._find_story(stuck), "violation: the group never settles"]

    def _successors(self, number: int, state: State) -> Iterator[tuple[str, int, State]]:
        """Yield each possible action, and the state after it."""
        calm, known = without_faults(state), dict[Any, Any]()
        if calm == PASSES and not has_settled(state):
            self._unsettled.add(number)
        for label, action in actions(state):
            self.transitions += 1
            try:
                after = action()
                check_owners(after)
            except Violation as violation:
                raise Violation(f"{label}, and {violation}") from violation
            reached = key(after, known)
            if label == calm:
                self._next[number] = reached
            yield label, reached, after

    def _find_stuck(self) -> int | None:
        """An unsettled state to which the group always returns without faults; None if there is no such state."""
        done: set[int] = set()
        for start in self._next:
            path, number = dict[int, None](), start
            while number not in done and number not in path:
                path[number] = None
                number = self._next[number]
            if number in path:
                visited = list(path)
                if stuck := self._unsettled.intersection(visited[visited.index(number) :]):
                    return min(stuck)
            done |= path.keys()
        return None

    def _find_story(self, number: int) -> list[str]:
        before, label = self.origins[number]
        return [] if before is None else [*self._find_story(before), label]


def _explore_alone(case: Case) -> CaseResult:
    """Explore `case` in its own process."""
    logging.disable()
    gc.disable()  # there are no reference cycles, and the collector would take half of the time
    return explore(case, seconds=_MAX_SECONDS)


def main() -> int:
    """Explore all cases. Returns the number of violations."""
    violations = 0
    with Pool(maxtasksperchild=1) as pool:
        for case, states, transitions, depth, complete, seconds, story in pool.imap(_explore_alone, CASES, chunksize=1):
            found = f"{states:,} states, {transitions:,} transitions, depth {depth}, {seconds:.0f} s"
            print(f"{case}: {found}{'' if complete or story else ' (not all)'}", flush=True)
            print("".join(f"    {line}\n" for line in story), end="", flush=True)
            violations += bool(story)
    print(f"violations: {violations}")
    return violations


if __name__ == "__main__":
    sys.exit(main() > 0)
