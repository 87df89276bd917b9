"""Settings of a job, which are Spark properties `spark.ehbalance.job.*`: each is declared once, as a field.

All are checked before anything starts, and each error is one line that names the setting, its value and what is
allowed. Spark shows properties to everybody, so that a secret is a reference, and no error repeats one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.exactly_once.target import check_name, is_path
from spark_ehbalance.query.options import stream_options
from spark_ehbalance.settings.declared import Declared, declarations, option_name
from spark_ehbalance.settings.locations import is_relative
from spark_ehbalance.settings.parsing import parse_duration
from spark_ehbalance.settings.secrets import REFERENCES, is_reference, looks_secret, shown

PREFIX = "spark.ehbalance.job."

_S = TypeVar("_S", bound="JobSettings")

#: Checks the options of a group, whose prefix is given, with the environment. Returns those to use. Raises
#: `SettingError`.
CheckOptions = Callable[[str, Mapping[str, str], Mapping[str, str]], Mapping[str, str]]

#: Options of a hub that are paths, in lower case.
_PATHS = ("leasetable", "cafile")


class SettingError(Exception):
    """A setting is missing or wrong. The text names it, its value and what is allowed."""


def required(parse: Callable[[str], Any], meaning: str = "") -> Any:
    """A setting without a default; see `settings.declared.declared`. `parse` says also of "" what is allowed."""
    return dataclasses.field(metadata={"declared": Declared(parse, meaning)})


def group(check: CheckOptions) -> Any:
    """The options whose names begin with the field's: `source.*` for the field `source`."""
    return dataclasses.field(default_factory=dict, metadata={"group": check})


def place(text: str) -> str:
    """Parses a path or an address that Spark can write."""
    if not text:
        raise ValueError("a path or an address that Spark can write")
    return text


def table_name(text: str) -> str:
    """Parses a table: a path or an address, or a name in Spark's catalog."""
    check_name(place(text))
    return text


def trigger_of(text: str) -> Mapping[str, Any]:
    """Parses when a query's batches start, into the arguments of Spark's `trigger`."""
    if text == "availableNow":
        return {"availableNow": True}
    try:
        return {"processingTime": f"{round(parse_duration(text) * 1000)} milliseconds"}
    except ValueError as allowed:
        raise ValueError(f"availableNow or {allowed}") from None


def refuse_secret(name: str, text: str) -> None:
    """Raise `SettingError` if `text`, of the setting with that full name, can only be a secret."""
    if looks_secret(text):
        raise SettingError(f"{name} holds what looks like a key or a signed address, for all to see")


@dataclasses.dataclass(frozen=True)
class JobSettings:
    """The base of a job's settings. A subclass has fields made by `required`, `declared` and `group`, and may check in
    `__post_init__` how they go together, raising `SettingError`."""

    @classmethod
    def read(cls: type[_S], conf: Mapping[str, str], environment: Mapping[str, str]) -> _S:
        """Read and check Spark's properties and the environment. Raises `SettingError`."""
        names = {option_name(field): field for field in declarations(cls)}
        groups = {each.name: each.metadata["group"] for each in dataclasses.fields(cls) if "group" in each.metadata}
        given = {key.removeprefix(PREFIX): value for key, value in conf.items() if key.startswith("spark.ehbalance.")}
        _refuse_unknown(given, list(names), list(groups))
        local = conf.get("spark.master", "local").startswith("local")
        values: dict[str, Any] = {}
        for name, field in names.items():
            _read(cls, field, name, given.get(name, "").strip(), values, local=local)
        for prefix, check in groups.items():
            options = {key.partition(".")[2]: text for key, text in given.items() if key.startswith(f"{prefix}.")}
            values[prefix] = check(f"{PREFIX}{prefix}.", options, environment)
            for option, text in options.items():
                if option.lower() in _PATHS and not local:
                    _refuse_relative(f"{prefix}.{option}", text)
        return cls(**values)


def _refuse_unknown(given: Mapping[str, str], names: list[str], groups: list[str]) -> None:
    unknown = sorted(key for key in given if key not in names and key.partition(".")[0] not in groups)
    unknown += sorted(key for key in given if key in groups)
    if unknown:
        *others, last = [PREFIX + name for name in (*names, *(f"{each}.OPTION" for each in groups))]
        allowed = f"{', '.join(others)} and {last}" if others else last
        name = unknown[0] if unknown[0].startswith("spark.") else PREFIX + unknown[0]
        raise SettingError(f"there is no setting {shown(name)}: allowed are {allowed}")


def _read(cls: type[Any], field: str, name: str, text: str, values: dict[str, Any], *, local: bool) -> None:
    parse = declarations(cls)[field].parse
    if not text and cls.__dataclass_fields__[field].default is not dataclasses.MISSING:
        return
    if parse in (place, table_name):
        refuse_secret(PREFIX + name, text)
    try:
        values[field] = parse(text)
    except EhBalanceError as error:
        raise SettingError(f"{PREFIX}{name}: {error}") from None
    except ValueError as allowed:
        wrong = f"={shown(text)} is wrong: allowed is {allowed}" if text else f" is not set: {allowed} is needed"
        raise SettingError(f"{PREFIX}{name}{wrong}") from None
    if not local and (parse is place or (parse is table_name and is_path(text))):
        _refuse_relative(name, text)


def _refuse_relative(name: str, text: str) -> None:
    if is_relative(text):
        raise SettingError(
            f"{PREFIX}{name}={shown(text)} is a relative path, which every job on a cluster resolves differently: "
            "write an address or an absolute path"
        )


# --- the options of a hub: `source.*` of one that is read, `sink.*` of one that is written

#: The variable of the environment with the connection string of the hub that is read. Command lines and Spark's UI show
#: properties to everybody.
SECRET = "EHBALANCE_CONNECTION_STRING"

#: How the names of options for secrets begin, in lower case.
_SECRETS = ("connectionstring", "clientsecret", "storagesecrets.")


def hub(parse: Callable[[Mapping[str, str]], object] = stream_options, variable: str = SECRET) -> Any:
    """The group of a hub's options, which `parse` checks. The connection string is in the environment's `variable`,
    unless the options name another one or Entra ID."""

    def check(prefix: str, options: Mapping[str, str], environment: Mapping[str, str]) -> Mapping[str, str]:
        for name, value in options.items():
            if name.lower().startswith(_SECRETS) and not is_reference(value):
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
