"""Options shared by several commands, declared as a dataclass of typer options."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def expand_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `command` for typer: each parameter of a dataclass type becomes one parameter per field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = list[Parameter]()
    for name, parameter in signature(command).parameters.items():
        members = signature(groups[name]).parameters.values() if name in groups else [parameter]
        types = get_type_hints(groups[name], include_extras=True) if name in groups else hints
        parameters += [member.replace(kind=Parameter.KEYWORD_ONLY, annotation=types[member.name]) for member in members]

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        values = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        return command(**given, **values)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run
