"""The options of `format("ehbalance")`: their names, what is allowed, and their values as one checked object.

Everything is checked here, before anything is started, and each error is one line that names the option, the value
and what is allowed. Values of options that may hold a secret are never repeated.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spark_ehbalance.errors import OptionError
from spark_ehbalance.hub.connection import Connection
from spark_ehbalance.hub.unreadable import FAIL, POLICIES
from spark_ehbalance.source.spark_checkpoint import checkpoint_location
from spark_ehbalance.stores.opening import check_storage, location
from spark_ehbalance.strategies import DEFAULT_STRATEGY, PARAMETERS, Parameters
from spark_ehbalance.values.parsing import flag, one_of, parse_duration, whole
from spark_ehbalance.values.secrets import (
    REFERENCES,
    could_be_secret,
    is_reference,
    looks_secret,
    names_secret,
    resolved,
    shown,
)
from spark_ehbalance.values.starting_positions import EARLIEST, LATEST, StartingPositions

_T = TypeVar("_T")

_STORAGE, _STORAGE_SECRET = "storageOptions.", "storageSecrets."


@dataclass(frozen=True)
class Options:
    """All options, checked. Times are in seconds. The defaults' reasons stand beside them."""

    connection: Connection
    consumer_group: str = "$Default"
    lease_table: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    strategy: str = DEFAULT_STRATEGY
    strategy_parameters: Parameters = field(default_factory=Parameters)  # of the kind that the strategy has
    owner_id: str | None = None
    starting_position: StartingPositions = LATEST
    ending_position: StartingPositions = LATEST
    max_events_per_trigger: int | None = None
    min_partitions: int | None = None
    max_partitions_owned: int | None = None
    fail_on_data_loss: bool = True  # as with Spark's Kafka source: losing events silently must be asked for
    balance_interval: float = 10.0  # the shortest of the Azure SDKs' intervals (Go, JavaScript)
    lease_duration: float = 30.0  # EventProcessorHost's; three intervals, and three renewals fit into it
    handover_timeout: float = 30.0  # one lease duration: waiting longer would be slower than a crash
    max_stall: float | None = None  # off: how long a batch may take is for the user to say
    prefetch: int = 1000  # 300 in the SDK; 1,000 to 5,000 keep a fast reader busy without holding much memory
    receiver_timeout: float = 60.0  # the Scala connector's
    owner_level: int | None = None
    json_properties: bool = False
    on_malformed: str = FAIL  # losing events silently must be asked for

    def __post_init__(self) -> None:
        if self.lease_duration <= self.balance_interval:
            raise OptionError(
                f"leaseDuration ({self.lease_duration:g} s) must be longer than balanceInterval "
                f"({self.balance_interval:g} s), at best three times as long"
            )
        if problem := self.strategy_parameters.problem(self.lease_duration):
            raise OptionError(problem)
        if self.lease_table is not None and self.owner_level is not None:
            raise OptionError(
                "ownerLevel cannot be set together with leaseTable: the epoch of the lease is the owner level"
            )
        if self.min_partitions is not None and self.owner_level is not None:
            raise OptionError(
                "minPartitions cannot be set together with ownerLevel: Event Hubs allows one reader with an owner level"
            )
        if self.lease_table is None:
            for name, value in (("ownerId", self.owner_id), ("maxPartitionsOwned", self.max_partitions_owned)):
                if value is not None:
                    raise OptionError(f"{name} needs leaseTable: without it one query reads all partitions")
            if self.storage_options:
                raise OptionError(f"{_STORAGE}* needs leaseTable: without it there is no table to store")


def stream_options(raw: Mapping[str, str]) -> Options:
    """The options of `readStream`, from keys in any case. Raises `OptionError`."""
    return _parse(raw, _COMMON | _STREAM, "spark.readStream")


def batch_options(raw: Mapping[str, str]) -> Options:
    """The options of `read`, which reads all partitions once and shares nothing. Raises `OptionError`."""
    defaults = {"startingposition": "earliest"}  # as with Spark's Kafka source
    return _parse(defaults | {k.lower(): v for k, v in raw.items()}, _COMMON | _BATCH, "spark.read")


def check_options(raw: Mapping[str, str]) -> None:
    """Check options of which it is not known yet whether a stream or a batch is meant. Raises `OptionError`."""
    keys = {key.lower() for key in raw}
    if keys & {name.lower() for name in _BATCH.keys() - _STREAM.keys()}:
        batch_options(raw)
    else:
        stream_options(raw)


def storage_options(public: Mapping[str, str], secret: Mapping[str, str], lease_table: str | None) -> dict[str, str]:
    """delta-rs's options for the lease table, from those that may be shown and those that may not; the value of each
    may be a reference.

    Raises `OptionError`.
    """
    given = {_STORAGE + name: value for name, value in public.items()}
    given |= {_STORAGE_SECRET + name: value for name, value in secret.items()}
    for option, value in given.items():
        prefix, _, name = option.partition(".")
        if could_be_secret(name):
            raise OptionError(f"option {prefix}.* has a name that could be a secret, and is not shown here")
        if option.startswith(_STORAGE) and not is_reference(value) and (names_secret(name) or looks_secret(value)):
            raise OptionError(
                f"option {option} holds a secret, which would be shown: give a reference as its value, {REFERENCES}, "
                f"or write {_STORAGE_SECRET}{name}, whose value Spark hides"
            )
    options = {option.partition(".")[2]: resolved(option, value) for option, value in given.items()}
    if lease_table is not None:
        check_storage(lease_table, options, os.environ)
    return options


# --- one option each -------------------------------------------------------------------------------------------


def checked_location(text: str, option: str = "leaseTable") -> str:
    """The place that `option` gives: an address, or a path for any working directory. Raises `OptionError`."""
    return _checked(location, text, option)


def checked_checkpoint(text: str) -> str:
    """The checkpoint that `--from-checkpoint` gives: an address, or a whole path. Raises `OptionError`."""
    return _checked(checkpoint_location, text, "--from-checkpoint")


def _checked(parse: Callable[[str], str], text: str, option: str) -> str:
    _refuse_secret(option, text)
    try:
        return parse(text.strip())
    except ValueError as allowed:
        raise _wrong(option, text, allowed) from None


def _owner_id(value: str) -> str:
    if not re.fullmatch(r"[\w.:@-]{1,200}", value, re.ASCII):
        raise ValueError("1 to 200 letters, digits and any of _ - . : @")
    return value


def _name(value: str) -> str:
    if not re.fullmatch(r"[\w$.-]{1,256}", value, re.ASCII):
        raise ValueError("1 to 256 letters, digits and any of _ - . $")
    return value


def _prefetch(value: str) -> int:
    number = whole(1)(value)
    if number > 10_000:
        raise ValueError("a whole number from 1 to 10000")
    return number


#: The same of the strategies' parameters: option name → (field of its `Parameters`, parser).
_PARAMETERS = {name: each for kind in PARAMETERS.values() for name, each in kind.options().items()}
#: Option name → (field of `Options`, parser that raises ValueError with what is allowed).
_COMMON: dict[str, tuple[str, Callable[[str], Any]]] = {
    "consumerGroup": ("consumer_group", _name),
    "startingPosition": ("starting_position", StartingPositions.parse),
    "minPartitions": ("min_partitions", whole(1)),
    "failOnDataLoss": ("fail_on_data_loss", flag),
    "prefetch": ("prefetch", _prefetch),
    "receiverTimeout": ("receiver_timeout", parse_duration),
    "ownerLevel": ("owner_level", whole(0)),
    "jsonProperties": ("json_properties", flag),
    "onMalformed": ("on_malformed", one_of(*POLICIES)),
}
_STREAM: dict[str, tuple[str, Callable[[str], Any]]] = {
    "leaseTable": ("lease_table", location),
    "strategy": ("strategy", one_of(*sorted(PARAMETERS))),
    "ownerId": ("owner_id", _owner_id),
    "maxEventsPerTrigger": ("max_events_per_trigger", whole(1)),
    "maxPartitionsOwned": ("max_partitions_owned", whole(1)),
    "balanceInterval": ("balance_interval", parse_duration),
    "leaseDuration": ("lease_duration", parse_duration),
    "handoverTimeout": ("handover_timeout", parse_duration),
    "maxStall": ("max_stall", parse_duration),
    **_PARAMETERS,
}
_BATCH: dict[str, tuple[str, Callable[[str], Any]]] = {
    "endingPosition": ("ending_position", StartingPositions.parse),
}
_CONNECTION = ("connectionString", "fullyQualifiedNamespace", "credential", "eventHubName")


def _wrong(name: str, text: str, allowed: ValueError) -> OptionError:
    return OptionError(f"option {name}={shown(text)} is wrong: allowed is {allowed}")


def _parse(raw: Mapping[str, str], table: dict[str, tuple[str, Callable[[str], Any]]], where: str) -> Options:
    given = {key.lower(): str(value).strip() for key, value in raw.items() if value is not None}
    public, secret = (_taken(given, prefix) for prefix in (_STORAGE, _STORAGE_SECRET))
    names = {name.lower(): name for name in (*_CONNECTION, *table)}
    if unknown := sorted(given.keys() - names.keys()):
        there = sorted([*names.values(), *([_STORAGE + "*", _STORAGE_SECRET + "*"] if "leaseTable" in table else [])])
        raise OptionError(f"{where} has no option {shown(unknown[0])}: there are {', '.join(there)}")
    for name, text in given.items():
        if names[name] != "connectionString":
            _refuse_secret(names[name], text)
    connection = Connection.from_options({name: given.pop(name.lower(), None) for name in _CONNECTION})
    values = _values(given, {name: each for name, each in table.items() if name not in _PARAMETERS})
    if "strategy" in table:
        values["strategy_parameters"] = _strategy_parameters(given, values.get("strategy", DEFAULT_STRATEGY))
    storage = storage_options(public, secret, values.get("lease_table"))
    return Options(connection=connection, storage_options=storage, **values)


def _taken(given: dict[str, str], prefix: str) -> dict[str, str]:
    """What in `given` has a name with this prefix, without the prefix; it is taken out."""
    names = [key for key in given if key.startswith(prefix.lower())]
    return {key[len(prefix) :]: given.pop(key) for key in names}


def _refuse_secret(name: str, text: str) -> None:
    if looks_secret(text):
        raise OptionError(
            f"option {name} holds what looks like a key or a signed address, which is not repeated here: only "
            f"connectionString and {_STORAGE_SECRET}* may hold a secret"
        )


def _values(given: Mapping[str, str], table: Mapping[str, tuple[str, Callable[[str], Any]]]) -> dict[str, Any]:
    """Field → value of the options in `table` that are `given`, with keys in lower case."""
    values: dict[str, Any] = {}
    for name, (field_name, parse) in table.items():
        text = given.get(name.lower())
        if text is not None:
            try:
                values[field_name] = parse(text)
            except ValueError as allowed:
                raise _wrong(name, text, allowed) from None
    return values


def _strategy_parameters(given: Mapping[str, str], strategy: str) -> Parameters:
    kind = PARAMETERS[strategy]
    for name in _PARAMETERS:
        if name.lower() in given and name not in kind.options():
            raise OptionError(
                f"option {name} is for strategy={name.partition('.')[0]}, and the strategy is {strategy}: leave it out"
            )
    return kind(**_values(given, kind.options()))


__all__ = [
    "EARLIEST",
    "LATEST",
    "Options",
    "batch_options",
    "check_options",
    "checked_checkpoint",
    "checked_location",
    "parse_duration",
    "stream_options",
]
