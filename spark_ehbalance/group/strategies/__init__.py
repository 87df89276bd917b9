"""Strategies, which assign partitions to members. Each is a pure function in its own module; the option `strategy`
names the module.

Modules in this folder that define `STRATEGY` are discovered automatically.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pkgutil import iter_modules

from spark_ehbalance.group.strategies.base import Decision, Strategy, View
from spark_ehbalance.group.strategies.declaration import Declaration, Parameters
from spark_ehbalance.group.strategies.handovers import with_stuck_handovers_resolved
from spark_ehbalance.group.strategies.mixing import with_mixed_fallback
from spark_ehbalance.settings.option_specs import OptionSpec, declarations, option_name

DEFAULT_STRATEGY = "cooperative"


def _found() -> Iterator[tuple[str, Declaration]]:
    for name in sorted(module.name for module in iter_modules(__path__)):
        declaration = getattr(import_module(f"{__name__}.{name}"), "STRATEGY", None)
        if declaration is not None:
            yield name, declaration


#: All strategies by name, in alphabetical order.
DECLARATIONS: dict[str, Declaration] = dict(_found())

#: The class of each strategy's parameters.
PARAMETERS: dict[str, type[Parameters]] = {name: declaration.parameters for name, declaration in DECLARATIONS.items()}

#: Strategies that decide as soon as a member or a lease changes.
REACTIVE = frozenset(name for name, declaration in DECLARATIONS.items() if declaration.reactive)


@dataclass(frozen=True)
class NamedStrategy:
    """The strategy `name` with `parameters` (None: the defaults).

    It also resolves stuck handovers, and decides by `cooperative` while members have different strategies.
    """

    name: str
    parameters: Parameters | None = None

    @cached_property
    def _decide(self) -> Strategy:
        declaration = DECLARATIONS[self.name]
        chosen = declaration.bound(self.parameters)
        if not declaration.resolves_stuck_handovers:
            chosen = with_stuck_handovers_resolved(chosen)
        return with_mixed_fallback(chosen)

    def __call__(self, view: View) -> Decision:
        return self._decide(view)


def parameter_options(name: str) -> dict[str, OptionSpec]:
    """Map the option names of the strategy `name` to the declarations of its parameters."""
    return {
        f"{name}.{option_name(field)}": declaration for field, declaration in declarations(PARAMETERS[name]).items()
    }


#: The strategies by name, each with its default parameters.
STRATEGIES: dict[str, Strategy] = {name: NamedStrategy(name) for name in DECLARATIONS}

__all__ = [
    "DECLARATIONS",
    "DEFAULT_STRATEGY",
    "PARAMETERS",
    "REACTIVE",
    "STRATEGIES",
    "Decision",
    "NamedStrategy",
    "Parameters",
    "Strategy",
    "View",
    "parameter_options",
]
