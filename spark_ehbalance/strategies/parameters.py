"""How a strategy declares its parameters: one frozen dataclass, a field each, with a default and what is allowed.

The field `minimum_grab` of the strategy `race` is the option `race.minimumGrab`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar


def parameter(default: Any, parse: Callable[[str], Any]) -> Any:
    """A field with `default`, read from an option's text by `parse`, which raises ValueError with what is allowed."""
    return dataclasses.field(default=default, metadata={"parse": parse})


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Those of one strategy. A strategy without any has this itself."""

    #: The strategy's name, with which its options begin.
    strategy: ClassVar[str] = ""

    @classmethod
    def options(cls) -> dict[str, tuple[str, Callable[[str], Any]]]:
        """Option name → (field, parser)."""
        return {
            f"{cls.strategy}.{_camel_case(each.name)}": (each.name, each.metadata["parse"])
            for each in dataclasses.fields(cls)
        }

    def problem(self, lease_duration: float) -> str | None:
        """What is wrong with the parameters taken together, where a lease lasts so many seconds; None if nothing."""
        return None


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
