"""Mutates the engines: `python -m storm.mutate [MODULE ...]` lists the mutants that survive their module's tests and
some seeds of the storm. Needs cosmic-ray, which is not a dependency: `pip install cosmic-ray`."""

from __future__ import annotations

import importlib
import inspect
import itertools
import multiprocessing
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path
from types import ModuleType
from typing import Annotated

import pytest
import typer
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from storm.plan import draw
from storm.rewriting import functions, rewrite_functions
from storm.world import play

#: The mutated modules → their tests.
MODULES = {
    "group.changes": ("group/test_transitions.py", "group/test_transitions_stateful.py"),
    "group.expiry": ("group/member/test_membership.py", "group/test_transitions_stateful.py"),
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

#: Seconds after which a mutant counts as killed, because it hangs.
_TIMEOUT = 120.0


def mutants(source: str) -> Iterator[str]:
    """Yield copies of `source` with one mutation each, in a function."""
    before = functions(source)
    names = [name for name in operator_names() if name.partition("/")[2].startswith(_OPERATORS)]
    for name in names:
        for occurrence in itertools.count():
            mutant = mutate_code(source, get_operator(name)(), occurrence)
            if mutant is None:
                break
            with suppress(SyntaxError):  # of a negated assignment expression
                if functions(mutant) != before:
                    yield mutant


def _run_mutant(module: ModuleType, source: str, tests: list[str], seeds: int) -> None:
    """Exit with 0 if neither the tests nor the storm detect the mutation."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    with rewrite_functions(module, source):
        failed = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])
        os._exit(int(failed or any(play(draw(seed)).violation for seed in range(seeds))))


def _survives(module: ModuleType, source: str, tests: list[str], seeds: int) -> bool:
    process = multiprocessing.Process(target=_run_mutant, args=(module, source, tests, seeds))
    process.start()
    process.join(_TIMEOUT)
    survives = process.exitcode == 0
    process.kill()
    return survives


def main(
    modules: Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(MODULES)}. Default: all.")] = None,
    sample: Annotated[int, typer.Option(help="Number of mutations per module, drawn at random.")] = 1_000_000,
    seeds: Annotated[int, typer.Option(help="Number of seeds of the storm that a mutant must survive.")] = 40,
) -> None:
    """Mutate modules in one place at a time, and list the mutants that survive."""
    for name in modules or MODULES:
        module = importlib.import_module(f"spark_ehbalance.{name}")
        source = Path(inspect.getfile(module)).read_text(encoding="utf-8")
        drawn = list(mutants(source))
        drawn = random.Random(name).sample(drawn, min(sample, len(drawn)))
        tests, survivors = [f"tests/{test}" for test in MODULES[name]], 0
        if not _survives(module, source, tests, seeds):
            raise RuntimeError(f"the tests of {name} fail without a mutation: repair them first")
        for mutant in drawn:
            if _survives(module, mutant, tests, seeds):
                survivors += 1
                diff = unified_diff(source.splitlines(), mutant.splitlines(), name, "survivor", lineterm="", n=1)
                print("\n".join(diff), flush=True)
        print(f"{name}: {survivors} of {len(drawn)} mutations survive", flush=True)


if __name__ == "__main__":
    typer.run(main)
