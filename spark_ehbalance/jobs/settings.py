"""Settings of a job: Spark properties `spark.ehbalance.job.*`, each declared once, as a field.

All settings are checked before anything starts. Spark shows properties to everybody, so a secret must be given by
reference, and no error contains a secret.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from spark_ehbalance.errors import OptionError, TargetError
from spark_ehbalance.exactly_once.target import check_name, is_path
from spark_ehbalance.query.options import stream_options
from spark_ehbalance.settings.locations import is_relative
from spark_ehbalance.settings.option_specs import OptionSpec, declarations, option_name
from spark_ehbalance.settings.parsing import parse_duration
from spark_ehbalance.settings.secrets import REFERENCES, is_reference, looks_secret, redacted

PREFIX = "spark.ehbalance.job."

_S = TypeVar("_S", bound="JobSettings")

#: Checks a group of options: takes its prefix, the options and the environment, and returns the options to use. Raises
#: `SettingError`.
CheckOptions = Callable[[str, Mapping[str, str], Mapping[str, str]], Mapping[str, str]]

#: Names (in lower case) of hub options whose values are paths.
_PATHS = ("leasetable", "cafile")


class SettingError(OptionError):
    """A setting of a job is missing or invalid, or contradicts another one."""


def required(parse: Callable[[str], Any], meaning: str = "") -> Any:
    """A setting without a default; see `option_field`. `parse` raises `ValueError` for an empty string."""
    return dataclasses.field(metadata={"spec": OptionSpec(parse, meaning)})


def group(check: CheckOptions) -> Any:
    """The options whose names begin with the field's name, such as `source.*` for the field `source`."""
    return dataclasses.field(default_factory=dict, metadata={"group": check})


def parse_location(text: str) -> str:
    """Parses a path or an address to which Spark can write."""
    if not text:
        raise ValueError("a path or an address to which Spark can write")
    return text


def parse_table(text: str) -> str:
    """Parses a table: a path or an address, or a name in Spark's catalog."""
    try:
        check_name(parse_location(text))
    except TargetError:
        raise ValueError("either a path or a name in the catalog") from None
    return text


def parse_trigger(text: str) -> Mapping[str, Any]:
    """Parses a trigger into the arguments of Spark's `trigger`."""
    if text == "availableNow":
        return {"availableNow": True}
    try:
        return {"processingTime": f"{round(parse_duration(text) * 1000)} milliseconds"}
    except ValueError as allowed:
        raise ValueError(f"availableNow or {allowed}") from None


def reject_secret(name: str, text: str) -> None:
    """Raise `SettingError` if `text`, the value of setting `name`, looks like a secret."""
    if looks_secret(text):
        raise SettingError(
            "EHB_SECRET_EXPOSED",
            option=name,
            reason="its value looks like a key or a signed address",
            allowed="a value without a key or a signature",
        )


def unknown_setting(name: str, allowed: list[str]) -> SettingError:
    """The error for the unknown setting `name`; `allowed` are the valid names."""
    return SettingError(
        "EHB_OPTION_UNKNOWN", option=redacted(name), where="this job", hint=f"; its settings are {', '.join(allowed)}"
    )


@dataclasses.dataclass(frozen=True)
class JobSettings:
    """The base class of a job's settings. A subclass has fields made by `required`, `option_field` and `group`. It may
    define a `__post_init__` that raises `SettingError` if its settings are incompatible."""

    @classmethod
    def read(cls: type[_S], conf: Mapping[str, str], environment: Mapping[str, str]) -> _S:
        """Read and check Spark's properties and the environment. Raises `SettingError`."""
        names = {option_name(field): field for field in declarations(cls)}
        groups = {field.name: field.metadata["group"] for field in dataclasses.fields(cls) if "group" in field.metadata}
        texts = {key.removeprefix(PREFIX): value for key, value in conf.items() if key.startswith("spark.ehbalance.")}
        _reject_unknown(texts, list(names), list(groups))
        local = conf.get("spark.master", "local").startswith("local")
        values: dict[str, Any] = {}
        for name, field in names.items():
            _read(cls, field, name, texts.get(name, "").strip(), values, local=local)
        for prefix, check in groups.items():
            options = {key.partition(".")[2]: text for key, text in texts.items() if key.startswith(f"{prefix}.")}
            values[prefix] = check(f"{PREFIX}{prefix}.", options, environment)
            for option, text in options.items():
                if option.lower() in _PATHS and not local:
                    _reject_relative(f"{prefix}.{option}", text)
        return cls(**values)


def _reject_unknown(texts: Mapping[str, str], names: list[str], groups: list[str]) -> None:
    unknown = sorted(key for key in texts if key not in names and key.partition(".")[0] not in groups)
    unknown += sorted(key for key in texts if key in groups)
    if unknown:
        name = unknown[0] if unknown[0].startswith("spark.") else PREFIX + unknown[0]
        raise unknown_setting(name, [PREFIX + name for name in (*names, *(f"{prefix}.OPTION" for prefix in groups))])


def _read(cls: type[Any], field: str, name: str, text: str, values: dict[str, Any], *, local: bool) -> None:
    parse = declarations(cls)[field].parse
    if not text and cls.__dataclass_fields__[field].default is not dataclasses.MISSING:
        return
    if parse in (parse_location, parse_table):
        reject_secret(PREFIX + name, text)
    try:
        values[field] = parse(text)
    except ValueError as allowed:
        if not text:
            raise SettingError("EHB_OPTION_REQUIRED", option=PREFIX + name, reason=str(allowed)) from None
        raise _invalid(name, text, str(allowed)) from None
    if not local and (parse is parse_location or (parse is parse_table and is_path(text))):
        _reject_relative(name, text)


def _reject_relative(name: str, text: str) -> None:
    if is_relative(text):
        raise _invalid(
            name, text, "an address or an absolute path, because jobs on a cluster resolve a relative path differently"
        )


def _invalid(name: str, text: str, allowed: str) -> SettingError:
    return SettingError("EHB_OPTION_INVALID", option=PREFIX + name, value=redacted(text), allowed=allowed)


# --- the options of a hub: `source.*` to read from it, `sink.*` to write to it

#: Environment variable with the connection string of the hub to read. It is not a property, because command lines and
#: Spark's UI show properties to everybody.
SECRET = "EHBALANCE_CONNECTION_STRING"

#: Prefixes (in lower case) of the names of secret options.
_SECRETS = ("connectionstring", "clientsecret", "storagesecrets.")


def hub(parse: Callable[[Mapping[str, str]], object] = stream_options, variable: str = SECRET) -> Any:
    """The group of a hub's options, which `parse` checks. The connection string is read from the environment
    `variable`, unless the options contain another reference or use Entra ID."""

    def check(prefix: str, options: Mapping[str, str], environment: Mapping[str, str]) -> Mapping[str, str]:
        for name, value in options.items():
            if name.lower().startswith(_SECRETS) and not is_reference(value):
                raise SettingError(
                    "EHB_SECRET_EXPOSED",
                    option=redacted(prefix + name),
                    reason="Spark shows properties to everybody",
                    allowed=REFERENCES,
                )
        checked = _with_secret(prefix, options, environment, variable)
        try:
            parse(checked)
        except OptionError as error:
            raise _with_prefix(prefix, error) from None
        return checked

    return group(check)


def _with_prefix(prefix: str, error: OptionError) -> SettingError:
    """The error, with the option's name replaced with the setting's, which begins with `prefix`."""
    parameters = dict(error.parameters)
    for name in {"option", "options"} & parameters.keys():
        parameters[name] = prefix + str(parameters[name]).strip("'")
    return SettingError(error.condition, **parameters)


def _with_secret(
    prefix: str, options: Mapping[str, str], environment: Mapping[str, str], variable: str
) -> Mapping[str, str]:
    names, has_secret = {name.lower() for name in options}, bool(environment.get(variable))
    if "connectionstring" in names:
        return options
    namespace, has_namespace = f"{prefix}fullyQualifiedNamespace", "fullyqualifiednamespace" in names
    if has_secret and has_namespace:
        raise SettingError("EHB_OPTIONS_CONFLICT", options=f"{variable} and {namespace}", reason="set one of them")
    if not has_secret and not has_namespace:
        raise SettingError(
            "EHB_OPTION_REQUIRED",
            option=f"{variable} or {namespace}",
            reason="one of them must name the event hub's namespace",
        )
    # Spark's query plans and event logs then show only the reference.
    return {**options, "connectionString": f"env:{variable}"} if has_secret else options
