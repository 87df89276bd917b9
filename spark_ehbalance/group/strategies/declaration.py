"""Declarations of strategies: each strategy's module ends with `STRATEGY = Declaration(...)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from spark_ehbalance.group.strategies.base import Decision, Strategy


@dataclass(frozen=True)
class Parameters:
    """The base of a strategy's parameters: a frozen dataclass with fields made by `settings.option_specs.option_field`.

    For example, the field `delay_per_lease` of the strategy `race` is the option `race.delayPerLease`. A strategy
    without parameters uses this class itself.
    """


@dataclass(frozen=True, slots=True)
class Declaration:
    """A strategy, named after its module.

    `decide` accepts a view and, if the strategy has parameters, the keyword `parameters`. `origin` and `rule` are shown
    in the documentation. `reactive`: the strategy decides as soon as a member or a lease changes, and not only in the
    next cycle. `resolves_stuck_handovers`: the strategy resolves stuck handovers itself. `by_leases_alone`: it needs
    neither handovers nor member rows.

    The tests shared by all strategies check the other fields. `moves`: how the strategy takes partitions from live
    members. `one_per_cycle`: a member takes only one partition per cycle. `tolerates_uneven_loads`: with known loads, a
    group may stay as uneven as the parameters allow.
    """

    decide: Callable[..., Decision]
    origin: str
    rule: str
    parameters: type[Parameters] = Parameters
    reactive: bool = False
    resolves_stuck_handovers: bool = False
    by_leases_alone: bool = False
    moves: Literal["handover", "steal"] = "handover"
    one_per_cycle: bool = False
    tolerates_uneven_loads: bool = False

    def bound(self, parameters: Parameters | None) -> Strategy:
        """The strategy's function with `parameters` bound (None: the defaults)."""
        if self.parameters is Parameters:
            return self.decide
        return partial(self.decide, parameters=parameters or self.parameters())
