"""The options of a hub in a job's settings: `source.*` of one that is read, `sink.*` of one that is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spark_ehbalance.errors import OptionError
from spark_ehbalance.job.settings import SettingError, group
from spark_ehbalance.source.options import stream_options
from spark_ehbalance.values.secrets import REFERENCES, is_reference, shown

#: The variable of the environment with the connection string of the hub that is read. Command lines and Spark's UI show
#: properties to everybody.
SECRET = "EHBALANCE_CONNECTION_STRING"


def hub(parse: Callable[[Mapping[str, str]], object] = stream_options, variable: str = SECRET) -> Any:
    """The group of a hub's options, which `parse` checks. The connection string is in the environment's `variable`,
    unless the options name another one or Entra ID."""

    def check(prefix: str, options: Mapping[str, str], environment: Mapping[str, str]) -> Mapping[str, str]:
        for name, value in options.items():
            if name.lower().startswith(("connectionstring", "storagesecrets.")) and not is_reference(value):
                raise SettingError(f"{shown(prefix + name)} holds a secret, for all to see: write {REFERENCES}")
        checked = _with_secret(prefix, options, environment, variable)
        try:
            parse(checked)
        except OptionError as error:
            raise SettingError(f"{prefix}*: {error}") from None
        return checked

    return group(check)


def _with_secret(
    prefix: str, options: Mapping[str, str], environment: Mapping[str, str], variable: str
) -> Mapping[str, str]:
    given, secret = {name.lower() for name in options}, bool(environment.get(variable))
    if "connectionstring" in given:
        return options
    if secret == ("fullyqualifiednamespace" in given):
        raise SettingError(
            f"{'both' if secret else 'neither'} of the environment variable {variable} and "
            f"{prefix}fullyQualifiedNamespace set: set one of them"
        )
    # Plans and event logs show the reference only.
    return {**options, "connectionString": f"env:{variable}"} if secret else options
