"""How a strategy declares itself: each file with a strategy ends with `STRATEGY = Declaration(...)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from spark_ehbalance.group.strategies.base import Decision, Strategy


@dataclass(frozen=True)
class Parameters:
    """A strategy's parameters: a frozen dataclass whose fields are made by `settings.option_specs.option_field`.

    The field `delay_per_lease` of the strategy `race` is the option `race.delayPerLease`. A strategy without
    parameters has this class itself.
    """


@dataclass(frozen=True, slots=True)
class Declaration:
    """A strategy. Its name is that of its file.

    `decide` takes a view and, if the strategy has parameters, the keyword `parameters`. `origin` and `rule` are its
    line in the documentation. `reactive`: it decides as soon as a member or a lease changes; without this it decides in
    its next cycle, as the processors do that most strategies come from. `resolves_stuck_handovers`: it does so by
    itself. `by_leases_alone`: it needs no handovers and no rows of members, as an owner is known by what it owns.

    What follows is held against it by the common tests. `moves`: how it takes partitions from live members, if it does.
    `one_a_cycle`: a member takes one partition a cycle, so that a group needs as many cycles as it has partitions.
    `tolerates_uneven_loads`: where loads are known, a group may stay as uneven as the strategy's parameters allow.
    """

    decide: Callable[..., Decision]
    origin: str
    rule: str
    parameters: type[Parameters] = Parameters
    reactive: bool = False
    resolves_stuck_handovers: bool = False
    by_leases_alone: bool = False
    moves: Literal["handover", "steal"] = "handover"
    one_a_cycle: bool = False
    tolerates_uneven_loads: bool = False

    def bound(self, parameters: Parameters | None) -> Strategy:
        """The function with its parameters: the default ones unless given."""
        if self.parameters is Parameters:
            return self.decide
        return partial(self.decide, parameters=parameters or self.parameters())
