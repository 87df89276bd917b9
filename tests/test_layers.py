"""Imports run down only, from a layer to lower ones, and never in a cycle."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_ehbalance

#: The layers from the bottom up. Packages in a layer do not import one another. Part of a room can be its own layer.
LAYERS = (
    {"clock", "text", "spark_versions"},
    {"error_conditions"},
    {"errors"},
    {"dependencies", "shipped"},
    {"settings"},
    {"group"},
    {"eventhub", "emulator"},
    {"group.strategies", "lease_table"},
    {"group.member"},
    {"metrics"},
    {"query", "simulation"},
    {"spark"},
    {"exactly_once", "consumers", "pytest_plugin"},
    {"ops"},
    {"jobs"},
)
#: Modules that decide or encode use no clock, I/O or threads, so they import none of `EDGES`.
PURE = (
    "spark_versions",
    "group.",
    "emulator.amqp.",
    "metrics.definitions",
    "metrics.table",
    "query.batch_in_flight",
    "query.batch_planning",
    "query.engine",
    "query.event_check",
    "query.unknown_options",
    "query.consistency",
    "query.progress_policy",
    "query.protocol",
    "query.replay",
    "query.finished_batches",
    "query.positions",
    "query.stalls",
    "eventhub.sending.columns",
    "eventhub.wire.encoder",
    "exactly_once.marks",
    "exactly_once.protocol",
    "exactly_once.schemas",
    "jobs.json_values",
    "jobs.settings",
)
EDGES = {"asyncio", "azure", "deltalake", "os", "pathlib", "pyspark", "selectors", "socket", "threading", "time"}
#: The emulator imports nothing else from the package; only its command and the plugin import the emulator.
APART = {"emulator": {"ops", "pytest_plugin"}}

#: Spark's types, which do not require Spark.
_VALUES = "pyspark.sql.types"

_PACKAGE = "spark_ehbalance"
#: The package's public functions call this module, so importing the package counts as importing it.
_OFFERED_BY = "spark"
_ROOT = Path(spark_ehbalance.__file__).parent


def _modules() -> dict[str, Path]:
    files = {".".join(path.relative_to(_ROOT).with_suffix("").parts): path for path in _ROOT.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in files.items() if name != "__init__"}


_MODULES = _modules()


def _imports(source: str) -> Iterator[str]:
    """The modules of this package that a module imports, even inside functions, without the package's name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(node)
            inner = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name.removeprefix(_PACKAGE + ".") in _MODULES else base for name in inner]
        else:
            continue
        yield from {name.removeprefix(_PACKAGE + ".") for name in names if name.startswith(_PACKAGE + ".")}
        if _PACKAGE in names:
            yield _OFFERED_BY


def _base(node: ast.ImportFrom) -> str:
    """The name of the module that `node` imports from."""
    assert not node.level, "imports are absolute"
    return str(node.module)


def _outside(source: str) -> set[str]:
    """The packages outside this one that a module imports."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(_base(node))
    return {name.partition(".")[0] for name in names - {_VALUES}} - {_PACKAGE}


def _package(module: str) -> str:
    """The package in `LAYERS` that contains `module`, or otherwise its room."""
    room, _, rest = module.partition(".")
    part = f"{room}.{rest.partition('.')[0]}"
    return part if any(part in packages for packages in LAYERS) else room


def _layer(package: str) -> int:
    return next(number for number, packages in enumerate(LAYERS) if package in packages)


def upward(module: str, source: str) -> list[str]:
    """The imports of `module` that do not run down."""
    here = _package(module)
    return [
        target
        for target in _imports(source)
        if (there := _package(target)) != here
        and (_layer(there) >= _layer(here) or here not in APART.get(there, {here}))
    ]


def test_every_module_belongs_to_a_layer() -> None:
    assert {_package(module) for module in _MODULES} == set().union(*LAYERS)


@pytest.mark.parametrize("module", sorted(_MODULES))
def test_imports_run_down_only(module: str) -> None:
    assert upward(module, _MODULES[module].read_text()) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("group.model", "from spark_ehbalance.group.strategies.base import View"),
        ("group.model", "def f():\n    import spark_ehbalance.group.member.engine"),
        ("group.strategies.plan", "from spark_ehbalance import lease_table"),
        ("group.strategies.plan", "from spark_ehbalance.lease_table import contract"),
        ("eventhub.receiver", "from spark_ehbalance.lease_table.contract import Store"),
        ("query.planner", "from spark_ehbalance.emulator import Emulator"),
        ("emulator.broker", "from spark_ehbalance.eventhub import rows"),
        ("group.model", "from spark_ehbalance import register"),
        ("group.model", "import spark_ehbalance"),
    ],
)
def test_module_in_the_wrong_layer_is_detected(module: str, source: str) -> None:
    assert upward(module, source)


@pytest.mark.parametrize("module", sorted(m for m in _MODULES if m.startswith(PURE)))
def test_pure_modules_have_no_clock_and_no_io(module: str) -> None:
    source = _MODULES[module].read_text()
    assert not _outside(source) & EDGES
    assert not _chance(source), "draws come from a generator that is passed in"
    assert "from random import" not in source


def _chance(source: str) -> set[str]:
    """Uses of `random` other than seeded generators passed as arguments."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
    } - {"Random"}


def test_clock_in_a_pure_module_is_detected() -> None:
    assert _outside("def f():\n    from time import monotonic\nimport os.path") == {"time", "os"}


def test_emulators_protocol_is_independent_of_the_server() -> None:
    for module in (name for name in _MODULES if name.startswith("emulator.amqp.")):
        beyond = {name for name in _imports(_MODULES[module].read_text()) if "emulator.amqp." not in name}
        assert not beyond, module


def test_imports_have_no_cycle() -> None:
    left = {module: set(_imports(path.read_text())) & _MODULES.keys() for module, path in _MODULES.items()}
    while free := [module for module, needs in left.items() if not needs & left.keys()]:
        for module in free:
            del left[module]
    assert not left, {module: sorted(needs & left.keys()) for module, needs in left.items()}


#: For each kind of process that a query starts: the module with its entry point, and modules it must not import.
_PROCESSES = {
    "schema": ("spark.datasource", {"query.planner", "query.range_reader", "spark.writer", "deltalake", "pandas"}),
    "planner without a lease table": ("query.assembly", {"lease_table.delta.store", "lease_table.blob.store", "rich"}),
    "tasks": ("query.range_reader", {"query.planner", "group.member.engine", "azure.identity", "deltalake"}),
}


@pytest.mark.parametrize(("entry", "unneeded"), _PROCESSES.values(), ids=_PROCESSES.keys())
def test_process_does_not_import_what_it_does_not_use(entry: str, unneeded: set[str]) -> None:
    program = f"import sys, {_PACKAGE}.{entry}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    imported = {name.removeprefix(_PACKAGE + ".") for name in result.stdout.split()}
    assert entry in imported
    assert not imported & unneeded
