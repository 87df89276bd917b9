"""Parse the values of declared options (`settings.option_specs`) and report invalid values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_ehbalance.errors import OptionError
from spark_ehbalance.settings.option_specs import declarations, option_name
from spark_ehbalance.settings.secrets import looks_secret, redacted


def invalid_option(option: str, text: str, allowed: object) -> OptionError:
    """The error for an option with an invalid value; `allowed` describes the valid values."""
    return OptionError("EHB_OPTION_INVALID", option=option, value=redacted(text), allowed=str(allowed))


def reject_secret(option: str, text: str, secret_options: str) -> None:
    """Raise `OptionError` if `text`, the value of `option`, is certainly a secret. The error names `secret_options`,
    the options in which secrets are allowed."""
    if looks_secret(text):
        reason = "its value looks like a key or a signed address"
        raise OptionError("EHB_SECRET_EXPOSED", option=option, reason=reason, allowed=f"a secret in {secret_options}")


def parse_options(options: Mapping[str, str], kind: type[Any], prefix: str = "") -> dict[str, Any]:
    """Map the fields of the dataclass `kind` that are set in `options` to their parsed values. The names in `options`
    have the `prefix` and are in lower case. Raises `OptionError`."""
    values: dict[str, Any] = {}
    for field, declaration in declarations(kind).items():
        option = prefix + option_name(field)
        text = options.get(option.lower())
        if text is not None:
            try:
                values[field] = declaration.parse(text)
            except ValueError as allowed:
                raise invalid_option(option, text, allowed) from None
    return values
