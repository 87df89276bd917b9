"""Strategies: who should own what. Each is a pure function in a file of its own, chosen by the option `strategy`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from spark_ehbalance.strategies.balanced import balanced
from spark_ehbalance.strategies.base import Decision, Strategy, View
from spark_ehbalance.strategies.cooperative import cooperative
from spark_ehbalance.strategies.eph import eph
from spark_ehbalance.strategies.greedy import greedy
from spark_ehbalance.strategies.handovers import with_stuck_handovers_resolved
from spark_ehbalance.strategies.mixing import with_mixed_fallback
from spark_ehbalance.strategies.parameters import Parameters
from spark_ehbalance.strategies.race import RaceParameters, race
from spark_ehbalance.strategies.transfer import TransferParameters, transfer

_PLAIN: dict[str, Strategy] = {"balanced": balanced, "cooperative": cooperative, "eph": eph, "greedy": greedy}
_WITH_PARAMETERS: dict[str, tuple[Callable[..., Decision], type[Parameters]]] = {
    "race": (race, RaceParameters),
    "transfer": (transfer, TransferParameters),
}

#: The parameters of each strategy, by its name.
PARAMETERS: dict[str, type[Parameters]] = {
    **dict.fromkeys(_PLAIN, Parameters),
    **{name: parameters for name, (_, parameters) in _WITH_PARAMETERS.items()},
}

DEFAULT_STRATEGY = "cooperative"

#: Strategies that decide anew as soon as a member or a lease changes; the others wait for their next cycle, as the
#: processors do that they come from. A race is on as soon as a lease is free.
REACTIVE = frozenset({"cooperative", "race"})


def strategy(name: str, parameters: Parameters | None = None) -> Strategy:
    """The strategy called `name`, with its parameters bound: the default ones unless given.

    It also clears up stuck handovers, and gives way to a common rule in a group whose members have different ones.
    """
    if name in _PLAIN:
        chosen = _PLAIN[name]
    else:
        function, kind = _WITH_PARAMETERS[name]
        chosen = partial(function, parameters=parameters or kind())
    return with_mixed_fallback(chosen if name == "cooperative" else with_stuck_handovers_resolved(chosen))


#: The strategies by name, each with its default parameters.
STRATEGIES: dict[str, Strategy] = {name: strategy(name) for name in sorted(PARAMETERS)}

__all__ = [
    "DEFAULT_STRATEGY",
    "PARAMETERS",
    "REACTIVE",
    "STRATEGIES",
    "Decision",
    "Parameters",
    "Strategy",
    "View",
    "strategy",
]
