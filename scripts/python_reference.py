"""The list of docs/python.md: what is public, with signatures and docstrings. `scripts/write_tables.py` writes it.

Public is what a module of `MODULES` has in `__all__`, or else its classes. A function that only refers to another one
(see `MODULE.NAME`) has that one's docstring.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

MODULES = (
    "spark_ehbalance",
    "spark_ehbalance.delta",
    "spark_ehbalance.consumer",
    "spark_ehbalance.consumer.aio",
    "spark_ehbalance.emulator",
    "spark_ehbalance.pytest_plugin",
    "spark_ehbalance.errors",
)

#: What azure-eventhub's client calls, and no user.
_OF_THE_CLIENT = {"list_ownership", "claim_ownership", "list_checkpoints"}

_REFERS = re.compile(r"; see `([\w.]+)\.(\w+)`\.$")


def reference() -> str:
    seen: set[Any] = set()
    return "\n".join(line for name in MODULES for line in _module(name, seen))


def _module(name: str, seen: set[Any]) -> Iterator[str]:
    module = importlib.import_module(name)
    classes = [each for each, found in vars(module).items() if inspect.isclass(found) and found.__module__ == name]
    yield f"## {name}\n"
    if not (names := getattr(module, "__all__", classes)):
        yield f"{inspect.getdoc(module)}\n"
    for each in names:
        found = getattr(module, each)
        if name.endswith(".errors"):
            bases = ", ".join(base.__name__ for base in found.__bases__)
            yield f"- `{each}({bases})`"
            continue
        if name.endswith(".pytest_plugin"):
            yield f"- `{each}`: {' '.join((inspect.getdoc(found) or '').split())}"
            continue
        yield f"### {name}.{each}\n"
        if not (inspect.isclass(found) and issubclass(found, Exception)):
            found = _referred(found)
            yield f"```text\n{each}{_signature(found)}\n```\n"
        yield f"{inspect.getdoc(found)}\n"
        if members := [*_members(found, seen)]:
            yield f"Members: {', '.join(members)}\n"
    yield from [""] if name.endswith((".errors", ".pytest_plugin")) else []


def _referred(found: Any) -> Any:
    there = _REFERS.search(inspect.getdoc(found) or "") if inspect.isfunction(found) else None
    return getattr(importlib.import_module(there[1]), there[2]) if there else found


def _members(found: Any, seen: set[Any]) -> Iterator[str]:
    """The public methods and properties of a class that were not listed before: `help(…)` has the rest."""
    for name, each in [pair for base in getattr(found, "__mro__", ()) for pair in vars(base).items()]:
        function = each.fget if isinstance(each, property) else each
        ours = inspect.isfunction(function) and function.__module__.startswith("spark_ehbalance")
        if name.startswith("_") or name in _OF_THE_CLIENT or not ours or function in seen or not function.__doc__:
            continue
        seen.add(function)
        yield f"`{name}{'' if isinstance(each, property) else _signature(function, types=False)}`"


def _signature(found: Any, *, types: bool = True) -> str:
    """As it is written, without `self`; without `types` the names and defaults alone."""
    parts, star = [], False
    for each in inspect.signature(found).parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.KEYWORD_ONLY and not star:
            parts.append("*")
        star |= each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        text = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "") + each.name
        annotated = types and each.annotation is not each.empty
        text += f": {each.annotation}" if annotated else ""
        if each.default is not each.empty:
            text += f" = {each.default!r}" if annotated else f"={each.default!r}"
        parts.append(text)
    returned = inspect.signature(found).return_annotation
    return f"({', '.join(parts)})" + (
        f" -> {returned}" if types and isinstance(returned, str) and returned != "None" else ""
    )
