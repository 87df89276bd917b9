"""Reads what a user has given for declared options (`settings.declared`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_ehbalance.errors import OptionError
from spark_ehbalance.settings.declared import declarations, option_name
from spark_ehbalance.settings.secrets import looks_secret, shown


def wrong(name: str, text: str, allowed: ValueError) -> OptionError:
    """The error for an option whose value is not `allowed`."""
    return OptionError(f"option {name}={shown(text)} is wrong: allowed is {allowed}")


def refuse_secret(name: str, text: str, holders: str) -> None:
    """Raise `OptionError` if `text`, of the option `name`, can only be a secret. The options that may hold one are the
    `holders`."""
    if looks_secret(text):
        raise OptionError(
            f"option {name} holds what looks like a key or a signed address, which is not repeated here: only "
            f"{holders} may hold a secret"
        )


def parsed(given: Mapping[str, str], kind: type[Any], prefix: str = "") -> dict[str, Any]:
    """Field → value of those fields of the dataclass `kind` whose options, with this `prefix`, are `given`, by keys in
    lower case. Raises `OptionError`."""
    values: dict[str, Any] = {}
    for field_name, each in declarations(kind).items():
        name = prefix + option_name(field_name)
        text = given.get(name.lower())
        if text is not None:
            try:
                values[field_name] = each.parse(text)
            except ValueError as allowed:
                raise wrong(name, text, allowed) from None
    return values
