"""Options that several commands share: a dataclass of typer options, which a command takes as one value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def expanded(command: Callable[..., Any]) -> Callable[..., Any]:
    """`command` as typer takes it: a parameter whose type is a dataclass becomes a parameter for each of its fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = list[Parameter]()
    for name, each in signature(command).parameters.items():
        if name in groups:
            types = get_type_hints(groups[name], include_extras=True)
            members = [(field.name, field.default, types[field.name]) for field in fields(groups[name])]
        else:
            members = [(name, each.default, hints[name])]
        parameters += [Parameter(n, Parameter.KEYWORD_ONLY, default=default, annotation=t) for n, default, t in members]

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        values = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        return command(**given, **values)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run
