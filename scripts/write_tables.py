"""Write the documentation's tables from the code: options, strategies, metrics, errors, and the Python reference.

A table stands between two comments in its page, `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spark_ehbalance import errors
from spark_ehbalance.error_conditions import CONDITIONS
from spark_ehbalance.eventhub.sending.write_options import WriteOptions
from spark_ehbalance.group.group_view import FINDINGS
from spark_ehbalance.group.strategies import DECLARATIONS, DEFAULT_STRATEGY
from spark_ehbalance.metrics.definitions import BOTH, METRICS
from spark_ehbalance.query.options import BATCH, OPTIONS, SHARED, STRATEGY_OPTIONS, STREAM
from spark_ehbalance.settings.option_specs import OptionSpec, declarations, option_name

_ROOT = Path(__file__).parent.parent
_PAGE_NAMES = ("options", "writing", "sharing", "migration", "monitoring", "python", "errors")
PAGES = tuple(_ROOT / f"docs/{name}.md" for name in _PAGE_NAMES)

_SCOPES = {STREAM: "stream", SHARED: "shared", BATCH: "batch", "": "both"}


def options_table(options: Mapping[str, OptionSpec]) -> str:
    rows = [(f"`{name}`", option.default, _SCOPES[option.only], option.meaning) for name, option in options.items()]
    return _table(("option", "default", "for", "meaning"), rows)


def findings_table() -> str:
    rows = [
        (f"`{code}`", finding.severity.name.lower(), finding.text.replace("{", "`").replace("}", "`"), finding.remedy)
        for code, finding in FINDINGS.items()
    ]
    return _table(("code", "severity", "meaning", "what to do"), rows)


def metrics_table() -> str:
    rows = [
        (
            f"`{metric.name}`",
            "counter" if metric.is_counter else "gauge",
            ", ".join(f"`{label}`" for label in metric.labels),
            "query, table" if metric.source == BOTH else metric.source,
            metric.meaning,
        )
        for metric in METRICS
    ]
    return _table(("metric", "kind", "labels", "from", "meaning"), rows)


def error_conditions() -> str:
    """A section for each error class, with a subsection for each condition. Messages link to the subsections."""
    lines = []
    for error in map(vars(errors).__getitem__, _class_names(errors)):
        bases = [base.__name__ for base in error.__bases__]
        base = "" if bases in (["EhBalanceError"], ["Exception"]) else f" Base: `{'`, `'.join(bases)}`."
        lines.append(f"## {error.__name__}\n\n{inspect.getdoc(error)}{base}\n")
        for name, condition in CONDITIONS.items():
            if condition.error == error.__name__:
                message = condition.message.replace("{", "<").replace(":g}", ">").replace("}", ">")
                lines.append(f"### {name}\n\n`{message}`\n" + (f"\n{condition.remedy}\n" if condition.remedy else ""))
    return "\n".join(lines) + "\n"


# --- the Python reference ---------------------------------------------------------------------------------------

MODULES = (
    "spark_ehbalance",
    "spark_ehbalance.exactly_once",
    "spark_ehbalance.consumers",
    "spark_ehbalance.consumers.aio",
    "spark_ehbalance.emulator",
)

#: Methods that azure-eventhub's client calls, but no user.
_CLIENT_METHODS = {"list_ownership", "claim_ownership", "list_checkpoints"}

_REFERENCE = re.compile(r"; see `([\w.]+)\.(\w+)`\.$")


def reference() -> str:
    """The public names with their signatures and docstrings.

    A module in `MODULES` publishes the names in its `__all__`, or its classes if it has none. If a function's docstring
    only refers to another function (see `MODULE.NAME`), that function is described in its place.
    """
    seen: set[Any] = set()
    return "\n".join(line for name in MODULES for line in _module(name, seen))


def _module(name: str, seen: set[Any]) -> Iterator[str]:
    module = importlib.import_module(name)
    yield f"## {name}\n"
    if not (names := getattr(module, "__all__", _class_names(module))):
        yield f"{inspect.getdoc(module)}\n"
    for public_name in names:
        found = getattr(module, public_name)
        yield f"### {name}.{public_name}\n"
        if not (inspect.isclass(found) and issubclass(found, Exception)):
            found = _resolve_reference(found)
            yield f"`{public_name}{_signature(found, types=not inspect.isclass(found))}`\n"
        yield f"{inspect.getdoc(found)}\n"
        if members := [*_members(found, seen)]:
            yield f"Members: {', '.join(members)}\n"


def _class_names(module: Any) -> list[str]:
    """The classes that `module` defines."""
    return [
        name for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__
    ]


def _resolve_reference(found: Any) -> Any:
    there = _REFERENCE.search(inspect.getdoc(found) or "") if inspect.isfunction(found) else None
    return getattr(importlib.import_module(there[1]), there[2]) if there else found


def _members(found: Any, seen: set[Any]) -> Iterator[str]:
    """Yield the public methods and properties of a class that were not listed before. `help(…)` shows the rest."""
    for name, member in [pair for base in getattr(found, "__mro__", ()) for pair in vars(base).items()]:
        function = member.fget if isinstance(member, property) else member
        ours = inspect.isfunction(function) and function.__module__.startswith("spark_ehbalance")
        if name.startswith("_") or name in _CLIENT_METHODS or not ours or function in seen or not function.__doc__:
            continue
        seen.add(function)
        yield f"`{name}{'' if isinstance(member, property) else _signature(function, types=False)}`"


def _signature(found: Any, *, types: bool = True) -> str:
    """The signature as written in the code, without `self`. Without `types`, it contains only names and defaults."""
    parts, star = [], False
    for parameter in inspect.signature(found).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
        star |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "") + parameter.name
        annotated = types and parameter.annotation is not parameter.empty
        text += f": {parameter.annotation}" if annotated else ""
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}" if annotated else f"={parameter.default!r}"
        parts.append(text)
    returned = inspect.signature(found).return_annotation
    return f"({', '.join(parts)})" + (
        f" -> {returned}" if types and isinstance(returned, str) and returned != "None" else ""
    )


# --- pages -----------------------------------------------------------------------------------------------------------


def with_tables(page: str, tables: Mapping[str, str]) -> str:
    """`page` with each of its tables replaced by that in `tables`. Raises `KeyError` if a table is not in `tables`."""
    pattern = r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)"
    return re.sub(pattern, lambda found: found[1] + tables[found[2]] + found[3], page, flags=re.DOTALL)


def declared_tables() -> dict[str, str]:
    return {
        "options": options_table(OPTIONS),
        "write-options": _table(
            ("option", "default", "meaning"),
            [
                (f"`{option_name(name)}`", option.default, option.meaning)
                for name, option in declarations(WriteOptions).items()
            ],
        ),
        "strategy-options": _table(
            ("option", "default", "meaning"),
            [(f"`{name}`", option.default, option.meaning) for name, option in STRATEGY_OPTIONS.items()],
        ),
        "strategies": _table(
            ("`strategy`", "modelled on", "moves by", "how it shares"),
            [
                (f"`{name}`", DECLARATIONS[name].origin, DECLARATIONS[name].moves, DECLARATIONS[name].rule)
                for name in sorted(DECLARATIONS, key=lambda name: (name != DEFAULT_STRATEGY, name))
            ],
        ),
        "findings": findings_table(),
        "metrics": metrics_table(),
        "errors": error_conditions(),
        "python": reference(),
    }


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    text = "".join(f"| {' | '.join(cells)} |\n" for cells in lines).replace("| --- ", "|---")
    return re.sub(r"\|  (?=\|)", "| ", text)


def main() -> None:
    tables = declared_tables()
    for path in PAGES:
        path.write_text(with_tables(path.read_text(encoding="utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    main()
