"""Mutates the engines: `python -m storm.mutate [MODULE ...]` lists the mutants that survive their module's tests and
some seeds of the storm. Needs cosmic-ray, which is not a dependency: `pip install cosmic-ray`."""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import unified_diff
from types import ModuleType
from typing import Annotated, NoReturn

import pytest
import typer
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from hypothesis import HealthCheck, Phase, settings

from storm.plan import draw
from storm.rewriting import functions, rewrite_functions
from storm.world import play

#: The mutated modules → their tests.
MODULES = {
    "group.changes": ("group/test_transitions.py", "group/test_transitions_stateful.py"),
    "group.expiry": (
        "group/test_expiry.py",
        "group/member/test_membership.py",
        "group/test_transitions_stateful.py",
    ),
    "group.member.engine": ("group/member/test_engine.py", "group/member/test_per_lease.py", "query/test_engine.py"),
    "group.member.lease_duration": ("group/member/test_lease_duration.py",),
    "group.member.membership": (
        "group/member/test_membership.py",
        "group/member/test_engine.py",
        "group/member/test_lease_duration.py",
    ),
    "group.member.pacing": (
        "group/member/test_pacing.py",
        "group/member/test_engine.py",
        "group/member/test_per_lease.py",
    ),
    "group.member.pending": ("group/member/test_engine.py", "group/member/test_per_lease.py"),
    "query.batch_planning": ("query/test_batch_planning.py", "query/test_engine.py"),
    "query.engine": ("query/test_engine.py",),
    "query.event_check": ("query/test_engine.py",),
    "query.progress_policy": ("query/test_progress_policy.py",),
    "query.replay": ("query/test_replay.py",),
    "exactly_once.protocol": ("exactly_once/test_protocol.py",),
}

#: The kinds of mutations, by cosmic-ray's names.
_OPERATORS = (
    "AddNot",
    "NumberReplacer",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceComparisonOperator",
    "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_Sub_Add",
    "ZeroIterationForLoop",
)

#: Mutations that are not made, because identity and equality are the same for None, enums, small numbers and constants.
_REDUNDANT = ("_Is", "_IsNot", "_Is_Eq", "_IsNot_NotEq")

#: Number of examples of a stateful test.
_EXAMPLES = 25

#: CPU seconds, for the tests and for a seed of the storm, after which a mutant counts as killed, because it hangs.
_TEST_LIMIT, _SEED_LIMIT = 40, 4


def mutants(source: str) -> Iterator[str]:
    """Yield copies of `source` with one mutation each, in a function."""
    before = functions(source)
    for name in operator_names():
        if not name.partition("/")[2].startswith(_OPERATORS) or name.endswith(_REDUNDANT):
            continue
        for occurrence in itertools.count():
            mutant = mutate_code(source, get_operator(name)(), occurrence)
            if mutant is None:
                break
            with suppress(SyntaxError):  # of a negated assignment expression
                if functions(mutant) != before:
                    yield mutant


@dataclass
class _Forks:
    """Pytest plugin that runs the collected tests, and then the storm, in one fork of this process per mutant of
    `module`."""

    name: str
    module: ModuleType
    seeds: int
    survivors: int = 0
    _running: dict[int, str] = field(default_factory=dict)  # process id → mutant

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        session.items.sort(key=lambda item: item.get_closest_marker("hypothesis") is not None)  # the slow tests last
        for item in session.items:
            if isinstance(item, pytest.Function) and item.cls is not None and hasattr(item.cls, "settings"):
                item.cls.settings = settings(item.cls.settings, max_examples=_EXAMPLES)
        source = inspect.getsource(self.module)
        self._start(session, source)
        if not self._end(source):
            pytest.exit(f"the tests of {self.name} fail without a mutation: repair them first", 1)
        number = 0
        for number, mutant in enumerate(mutants(source), 1):
            if len(self._running) == os.cpu_count():
                self._end(source)
            self._start(session, mutant)
            print(f"{self.name}: {self.survivors} of {number} mutations survive", end="\r", file=sys.stderr)
        while self._running:
            self._end(source)
        print(f"{self.name}: {self.survivors} of {number} mutations survive", flush=True)
        return True

    def _start(self, session: pytest.Session, mutant: str) -> None:
        with rewrite_functions(self.module, mutant):
            process = os.fork()
            if process == 0:
                _run_mutant(session, self.seeds)
        self._running[process] = mutant

    def _end(self, source: str) -> bool:
        """Wait until the run of a mutant ends, and print the mutation if it survives. Returns whether it does."""
        process, status = os.wait()
        mutant = self._running.pop(process)
        diff = list(unified_diff(source.splitlines(), mutant.splitlines(), self.name, "survivor", lineterm="", n=1))
        if status == 0 and diff:
            self.survivors += 1
            print("\n".join(diff), flush=True)
        return status == 0


def _run_mutant(session: pytest.Session, seeds: int) -> NoReturn:
    """Exit with 0 if neither the tests nor the storm detect the mutation."""
    killed = True
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (limit := _TEST_LIMIT + _SEED_LIMIT * seeds, limit))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        session.config.pluginmanager.unregister(name="terminalreporter")
        fails = any(_fails(session, *items) for items in itertools.zip_longest(session.items, session.items[1:]))
        killed = fails or any(play(draw(seed)).violation for seed in range(seeds))
    finally:
        os._exit(killed)


def _fails(session: pytest.Session, item: pytest.Item, following: pytest.Item | None) -> bool:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    return bool(session.testsfailed)


def main(
    modules: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(MODULES)}. Default: all.")] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds of the storm that a mutant must survive.")] = 40,
) -> None:
    """Mutate modules in one place at a time, and list the mutants that survive."""
    # Examples are the same for all mutants, and are not simplified.
    phases, checks = (Phase.explicit, Phase.generate), list(HealthCheck)
    settings.register_profile(
        "mutate", derandomize=True, database=None, phases=phases, deadline=None, suppress_health_check=checks
    )
    settings.load_profile("mutate")
    for name in modules or MODULES:
        forks = _Forks(name, importlib.import_module(f"spark_ehbalance.{name}"), seeds)
        tests = [f"tests/{test}" for test in MODULES[name]]
        if pytest.main(["-qq", "-p", "no:cacheprovider", "-p", "no:warnings", *tests], [forks]):
            raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
