"""Declarations of options: dataclass fields with a default, a parser and a meaning.

The source's options, the strategies' parameters and the simulator's scenarios are declared in this way. Checks and the
documentation's tables are derived from the declarations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from spark_ehbalance.settings.parsing import duration_text, parse_duration


@dataclasses.dataclass(frozen=True, slots=True)
class OptionSpec:
    """The declaration of an option. `parse` parses a string, and raises `ValueError` with the allowed values. `default`
    and `meaning` are Markdown, for the documentation. Only the source's options use `only` and `in_batch` (see
    `Options`)."""

    parse: Callable[[str], Any] = str
    meaning: str = ""
    default: str = ""
    only: str = ""
    in_batch: str | None = None


def option_field(
    default: Any,
    parse: Callable[[str], Any],
    meaning: str = "",
    *,
    shown: str | None = None,
    only: str = "",
    in_batch: str | None = None,
) -> Any:
    """A dataclass field with `default`. `shown` is the default in Markdown (None: derived from `default`)."""
    text = _markdown(default, parse) if shown is None else shown
    if in_batch is not None:
        text = f"stream {text}, batch `{in_batch}`"
    return dataclasses.field(default=default, metadata={"spec": OptionSpec(parse, meaning, text, only, in_batch)})


def declarations(kind: type[Any]) -> dict[str, OptionSpec]:
    """Map the declared fields of the dataclass `kind`, in order, to their declarations."""
    return {field.name: field.metadata["spec"] for field in dataclasses.fields(kind) if "spec" in field.metadata}


def option_name(field: str) -> str:
    """The option name of a field, such as `leaseTable` for `lease_table`."""
    first, *others = field.split("_")
    return first + "".join(map(str.capitalize, others))


def _markdown(value: Any, parse: Callable[[str], Any]) -> str:
    if value is None:
        return ""
    if parse is parse_duration:
        return f"`{duration_text(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
