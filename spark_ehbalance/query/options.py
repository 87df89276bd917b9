"""The options of `format("ehbalance")`: each is declared once, as a field of `Options`.

The checks and the documentation's tables (`scripts/write_tables.py`) are derived from the declarations. All options are
checked before anything is started. Each error is one line with the option, its value and the allowed values. Values
that may be secret are never shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import unquote

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.connection_options import CONNECTION_OPTIONS, SECRET_OPTIONS
from spark_ehbalance.eventhub.credentials import Identity
from spark_ehbalance.eventhub.network import is_host
from spark_ehbalance.eventhub.rows import FAIL, POLICIES
from spark_ehbalance.eventhub.sending.write_options import CHECKPOINT_LOCATION, WRITE_OPTIONS, write_options
from spark_ehbalance.group.capabilities import LEASE_TABLE, Capabilities
from spark_ehbalance.group.defaults import (
    BALANCE_INTERVAL,
    HANDOVER_TIMEOUT,
    LEASE_DURATION,
    PROCESSOR_LEASE_DURATION,
)
from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.starting_positions import LATEST, StartingPositions
from spark_ehbalance.group.strategies import DECLARATIONS, DEFAULT_STRATEGY, PARAMETERS, Parameters, parameter_options
from spark_ehbalance.lease_table.backends import canonical_location, capabilities, check_storage
from spark_ehbalance.lease_table.blob.layout import blob_group
from spark_ehbalance.lease_table.identity import with_identity
from spark_ehbalance.metrics.prometheus import require_prometheus
from spark_ehbalance.query.unknown_options import unknown_option
from spark_ehbalance.settings.locations import path_in_url, scheme
from spark_ehbalance.settings.option_specs import OptionSpec, option_field, option_name
from spark_ehbalance.settings.option_texts import invalid_option, parse_options, reject_secret
from spark_ehbalance.settings.parsing import flag, one_of, parse_duration, whole_number
from spark_ehbalance.settings.secrets import (
    REFERENCES,
    is_reference,
    is_secret_name,
    looks_secret,
    may_be_secret,
    resolve_secret,
)

#: Where an option is allowed, if not everywhere. `SHARED` options are allowed only in streams with `leaseTable`.
STREAM, BATCH, SHARED = "spark.readStream", "spark.read", "leaseTable"

_STORAGE, _STORAGE_SECRET = "storageOptions.", "storageSecrets."


def _owner_id(value: str) -> str:
    if not re.fullmatch(r"[\w.:@-]{1,200}", value, re.ASCII):
        raise ValueError("a name of 1 to 200 characters: letters, digits and _ - . : @")
    return value


def _name(value: str) -> str:
    if not re.fullmatch(r"[\w$.-]{1,256}", value, re.ASCII):
        raise ValueError("a name of 1 to 256 characters: letters, digits and _ - . $")
    return value


def _host(value: str) -> str:
    if not re.fullmatch(r"[\w.:-]{1,253}", value, re.ASCII):
        raise ValueError("an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all")
    return value


def _server(value: str) -> str:
    if not is_host(value):
        raise ValueError("a host, or HOST:PORT")
    return value.lower()


@dataclass(frozen=True)
class Options:
    """All options, checked. Times are in seconds.

    Fields are named after the options, in snake case: `lease_table` is the option `leaseTable`. `only` is where an
    option is allowed, if not in both streams and batches. `in_batch` is the default in a batch, if it differs.
    """

    connection: Connection = field(metadata={"options": CONNECTION_OPTIONS})
    consumer_group: str = option_field("$Default", _name, "the consumer group")
    lease_table: str | None = option_field(
        None,
        canonical_location,
        "[path or address](operations.md#where-to-put-the-lease-table) of the Delta table through which queries share "
        "the hub, or of the container for sharing "
        "[with Azure's event processors](azure-clients.md#queries-beside-processors); without it, one query reads all "
        "partitions",
        shown="none",
        only=STREAM,
    )
    storage_options: Mapping[str, str] = field(
        default_factory=dict,
        repr=False,
        metadata={
            "options": {
                f"{_STORAGE}*": OptionSpec(
                    meaning="delta-rs's options for the lease table's storage; pass secrets only by reference. "
                    "`timeout` defaults to a sixth of `leaseDuration`; do not set it higher",
                    only=SHARED,
                ),
                f"{_STORAGE_SECRET}*": OptionSpec(
                    meaning="the same for options whose values are secrets, such as `storageSecrets.account_key`",
                    only=SHARED,
                ),
            }
        },
    )
    blob_namespace: str | None = option_field(
        None,
        _server,
        "[the namespace in blob names](azure-clients.md#names), if `leaseTable` is a container",
        shown="the connection's, without a port",
        only=SHARED,
    )
    strategy: str = option_field(
        DEFAULT_STRATEGY,
        one_of(*PARAMETERS),
        "[how partitions are shared](sharing.md#strategies); all members must use the same strategy. With Azure's "
        "event processors, only `balanced` (the default there) and `greedy` are allowed",
        only=SHARED,
    )
    strategy_parameters: Parameters = field(default_factory=Parameters)  # of the strategy's own class
    owner_id: str | None = option_field(
        None,
        _owner_id,
        "the query's name in the group, stored in its checkpoint; if two queries have the same name, the newer one "
        "stops the older",
        shown="generated",
        only=SHARED,
    )
    starting_position: StartingPositions = option_field(
        LATEST,
        StartingPositions.parse,
        "where reading starts in partitions without a checkpoint: `earliest`, `latest`, a sequence number (write one "
        'with 13 digits, like a time in milliseconds, as `{"next": NUMBER}`), a time with a time zone, such as '
        "`2026-01-31T12:00:00Z` (the first retained event at or after that time), or a JSON object with one of these "
        'per partition: `{"0": 4711, "*": "latest"}`. In a stream, `latest` is the end of the partition when the query '
        "(in a group, its first query) first started",
        shown="`latest`",
        in_batch="earliest",  # as with Spark's Kafka source
    )
    ending_position: StartingPositions = option_field(
        LATEST, StartingPositions.parse, "where reading ends (exclusive)", shown="`latest`", only=BATCH
    )
    max_events_per_trigger: int | None = option_field(
        None,
        whole_number(1),
        "maximum number of events per micro-batch, divided in proportion to the partitions' backlogs; at least one "
        "event is read from each partition with a backlog",
        shown="all",
        only=STREAM,
    )
    min_partitions: int | None = option_field(
        None,
        whole_number(1),
        "minimum number of Spark tasks per batch: large offset ranges are split into up to four tasks, and read "
        "without an owner level",
    )
    max_partitions_owned: int | None = option_field(
        None,
        whole_number(1),
        "maximum number of partitions that this query may own; if the members' limits add up to less than the number "
        "of partitions, the remaining partitions are not read, and a warning is logged",
        only=SHARED,
    )
    #: As with Spark's Kafka source: losing events silently must be opted into.
    fail_on_data_loss: bool = option_field(
        True,
        flag,
        "fail if events [aged out](operations.md#the-hub-lost-events) before they were read; with `false`, log a "
        "warning and continue at the nearest event",
    )
    compacted: bool = option_field(
        False,
        flag,
        "the hub is [compacted](operations.md#compacted-hubs), so gaps in sequence numbers are not data loss",
    )
    balance_interval: float = option_field(
        BALANCE_INTERVAL, parse_duration, "time between two balancing cycles", only=SHARED
    )
    lease_duration: float = option_field(
        LEASE_DURATION,
        parse_duration,
        "a query that has not renewed its leases for this long loses its partitions; must be longer than "
        "`balanceInterval`. All members use the value of the oldest member, or [a longer one if commits are "
        "slow](sizing.md#lease-duration); with [Azure's event processors](azure-clients.md#set-up), each member uses "
        "its own value, by default 60 s",
        only=SHARED,
    )
    handover_timeout: float = option_field(
        HANDOVER_TIMEOUT,
        parse_duration,
        "time allowed for a handover, after which the partition is stolen; except with `race`, [slow batches get "
        "more time](sharing.md#which-strategy)",
        only=SHARED,
    )
    #: Off by default: only the user knows how long a batch may take.
    max_stall: float | None = option_field(
        None,
        parse_duration,
        "if a batch runs for longer than this, the query releases its partitions; if the trigger interval is longer "
        "than this, call `spark_ehbalance.register(spark)`",
        shown="off",
        only=SHARED,
    )
    #: 300 in the SDK; 1,000 to 5,000 keep a fast reader busy without holding much memory.
    prefetch: int = option_field(
        1000, whole_number(1, 10_000), "maximum number of events that the hub sends ahead, per partition: 1 to 10,000"
    )
    #: The Scala connector's default.
    receiver_timeout: float = option_field(
        60.0,
        parse_duration,
        "if expected events do not arrive for this long, the partition [stalls](operations.md#a-partition-stalls), or "
        "the batch fails",
    )
    owner_level: int | None = option_field(
        None, whole_number(0), "owner level of receivers, for a query without `leaseTable`", shown="none"
    )
    json_properties: bool = option_field(
        False,
        flag,
        "return strings in `properties` and `systemProperties` as JSON strings, in quotes",
    )
    #: Losing events silently must be opted into.
    on_malformed: str = option_field(
        FAIL,
        one_of(*POLICIES),
        "what to do with an event that [cannot be read](options.md#events-that-cannot-be-read): `fail`, `keep` a row, "
        "or `skip` it",
    )
    metrics_port: int | None = option_field(
        None,
        whole_number(1, 65535),
        "port on the driver's machine that serves [the query's metrics](monitoring.md) to Prometheus; use a different "
        "port for each query",
        shown="none",
        only=STREAM,
    )
    #: Metrics contain hosts and positions: exposing them to the network must be opted into.
    metrics_host: str = option_field(
        "127.0.0.1",
        _host,
        "address on which `metricsPort` listens; `0.0.0.0` is [open to the network](security.md#metrics)",
        only=STREAM,
    )

    @property
    def group(self) -> Group:
        """The query's group, as named in its lease table."""
        group = self.connection.group(self.consumer_group)
        return group if self.capabilities.members else blob_group(group, self.blob_namespace)

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the group's store; a single query has a lease table in memory."""
        return LEASE_TABLE if self.lease_table is None else capabilities(self.lease_table)

    def level(self, epoch: int) -> int | None:
        """The AMQP owner level for reading a partition whose lease has this epoch."""
        if self.lease_table is None:
            return self.owner_level
        return self.capabilities.owner_level(epoch)

    def __post_init__(self) -> None:
        if self.lease_duration <= self.balance_interval:
            allowed = f"more than balanceInterval={self.balance_interval:g} s, ideally three times as long"
            value = f"{self.lease_duration:g} s"
            raise OptionError("EHB_OPTION_INVALID", option="leaseDuration", value=value, allowed=allowed)
        if self.lease_table is not None and self.owner_level is not None:
            reason = "the epoch of the lease is the owner level"
            raise OptionError("EHB_OPTIONS_CONFLICT", options="leaseTable and ownerLevel", reason=reason)
        if self.min_partitions is not None and self.owner_level is not None:
            reason = "Event Hubs allows only one reader with an owner level per partition"
            raise OptionError("EHB_OPTIONS_CONFLICT", options="minPartitions and ownerLevel", reason=reason)
        if self.blob_namespace is not None and self.capabilities.members:
            reason = "leaseTable is not a container of the Azure SDKs' checkpoint store"
            raise _not_applicable("blobNamespace", reason)
        if self.metrics_port is not None:
            require_prometheus("metricsPort")
        if self.lease_table is None and self.storage_options:
            reason = "they configure the lease table's storage, and leaseTable is not set"
            raise _not_applicable(f"{_STORAGE}* and {_STORAGE_SECRET}*", reason)


def stream_options(raw: Mapping[str, str]) -> Options:
    """The options of `readStream`; keys are case-insensitive. Raises `OptionError`."""
    return _parse(raw, STREAM)


def batch_options(raw: Mapping[str, str]) -> Options:
    """The options of `read`, which reads all partitions once. Raises `OptionError`."""
    given = {key.lower() for key, value in raw.items() if value is not None}
    defaults = {name: spec.in_batch for name, spec in OPTIONS.items() if spec.in_batch and name.lower() not in given}
    return _parse({**raw, **defaults}, BATCH)


def check_options(raw: Mapping[str, str]) -> None:
    """Check options without knowing whether they are meant for a stream, a batch query or a write. Raises
    `OptionError`."""
    keys = {key.lower() for key in raw}
    if keys & _FOR_WRITING:
        write_options(raw, OPTIONS)
    elif any(spec.only == BATCH and name.lower() in keys for name, spec in OPTIONS.items()):
        batch_options(raw)
    else:
        stream_options(raw)


def storage_options(
    public: Mapping[str, str], secret: Mapping[str, str], lease_table: str | None, identity: Identity | None = None
) -> dict[str, str]:
    """delta-rs's options for the lease table: the options that Spark shows (`public`), the options that it hides
    (`secret`), and the hub's `identity` if neither contains a credential. A value may be a reference. Raises
    `OptionError`."""
    given = {_STORAGE + name: value for name, value in public.items()}
    given |= {_STORAGE_SECRET + name: value for name, value in secret.items()}
    for option, value in given.items():
        prefix, _, name = option.partition(".")
        if may_be_secret(name):
            reason, allowed = "its name may be a secret, and is not shown", "the names of delta-rs's options"
            raise OptionError("EHB_SECRET_EXPOSED", option=f"{prefix}.*", reason=reason, allowed=allowed)
        if option.startswith(_STORAGE) and not is_reference(value) and (is_secret_name(name) or looks_secret(value)):
            allowed = f"{REFERENCES}, or {_STORAGE_SECRET}{name}, whose value Spark hides"
            raise OptionError("EHB_SECRET_EXPOSED", option=option, reason="Spark shows its value", allowed=allowed)
    options = {option.partition(".")[2]: resolve_secret(option, value) for option, value in given.items()}
    if lease_table is not None:
        options = with_identity(lease_table, options, identity, os.environ)
        check_storage(lease_table, options, os.environ)
    return options


def checked_location(text: str, option: str = "leaseTable") -> str:
    """The location in `option`: an address, or a path that does not depend on the working directory. Raises
    `OptionError`."""
    return _checked(canonical_location, text, option)


def _checkpoint_location(text: str) -> str:
    """The folder that `text` names, as a URL or an absolute path. The folder is only read, so any mount will do.

    Raises `ValueError`, whose message states what is allowed.
    """
    kind, mounts = scheme(text), {"file": "", "dbfs": "/dbfs"}
    if text and kind is None:
        return os.path.abspath(text)
    if kind in mounts:
        return os.path.normpath(mounts[kind] + unquote(path_in_url(kind, text.partition(":")[2])))
    return canonical_location(text)


def checked_checkpoint(text: str, option: str) -> str:
    """The checkpoint in `option`: an address, or an absolute path. Raises `OptionError`."""
    return _checked(_checkpoint_location, text, option)


def _checked(parse: Callable[[str], str], text: str, option: str) -> str:
    _reject_secret(option, text)
    try:
        return parse(text.strip())
    except ValueError as allowed:
        raise invalid_option(option, text, allowed) from None


def _declared_options() -> Iterator[tuple[str, OptionSpec]]:
    for option in fields(Options):
        if "spec" in option.metadata:
            yield option_name(option.name), option.metadata["spec"]
        yield from option.metadata.get("options", {}).items()


#: Declarations by option name, without the strategies' own options.
OPTIONS: dict[str, OptionSpec] = dict(_declared_options())

#: Keys of options that only exist for writing, in lower case.
_FOR_WRITING = {CHECKPOINT_LOCATION} | {name.lower() for name in WRITE_OPTIONS.keys() - OPTIONS.keys()}

#: Declarations of the strategies' own options, by name; for streams only.
STRATEGY_OPTIONS: dict[str, OptionSpec] = {
    name: spec for strategy in PARAMETERS for name, spec in parameter_options(strategy).items()
}


def option_names(where: str) -> tuple[str, ...]:
    """The options that are allowed at `where`: `STREAM` or `BATCH`."""
    if where == BATCH:
        return tuple(name for name, spec in OPTIONS.items() if spec.only in ("", BATCH))
    return (*(name for name, spec in OPTIONS.items() if spec.only != BATCH), *STRATEGY_OPTIONS)


def _parse(raw: Mapping[str, str], where: str) -> Options:
    given = {key.lower(): str(value).strip() for key, value in raw.items() if value is not None}
    public, secret = (_pop_prefixed(given, prefix) for prefix in (_STORAGE, _STORAGE_SECRET))
    names = {name.lower(): name for name in option_names(where)}
    if unknown := sorted(given.keys() - names.keys()):
        others = {*option_names(STREAM), *option_names(BATCH)} - set(names.values())
        elsewhere = {name.lower(): name for name in others}
        raise unknown_option(unknown[0], where, names.values(), elsewhere)
    for name, text in given.items():
        if name not in SECRET_OPTIONS:
            _reject_secret(names[name], text)
    connection = Connection.from_options({name: given.get(name.lower()) for name in CONNECTION_OPTIONS})
    values = parse_options(given, Options)
    lease_table = values.get("lease_table")
    if lease_table is None:
        _reject_sharing(given)
    elif not capabilities(lease_table).members:
        _join_processors(values, lease_table)
    if where == STREAM:
        values["strategy_parameters"] = _strategy_parameters(given, values.get("strategy", DEFAULT_STRATEGY))
    storage = storage_options(public, secret, lease_table, connection.identity)
    return Options(connection=connection, storage_options=storage, **values)


def _not_applicable(option: str, reason: str) -> OptionError:
    return OptionError("EHB_OPTION_NOT_APPLICABLE", option=option, reason=reason)


def _reject_sharing(given: Mapping[str, str]) -> None:
    """Raise `OptionError` for sharing options without leaseTable, because such queries would each read everything."""
    shared = (name for name, spec in OPTIONS.items() if spec.only == SHARED)
    for name in (*shared, *STRATEGY_OPTIONS):
        if name.lower() in given:
            raise _not_applicable(name, "it needs leaseTable; without leaseTable, each query reads all partitions")


def _join_processors(values: dict[str, Any], lease_table: str) -> None:
    """Set the defaults for sharing with Azure's event processors, and reject options that they do not support."""
    allowed = [name for name, declaration in DECLARATIONS.items() if declaration.by_leases_alone]
    processors = f"leaseTable={lease_table} is shared with Azure's event processors"
    if (strategy := values.setdefault("strategy", allowed[0])) not in allowed:
        reason = f"{', '.join(allowed)}, because {processors}, which do not support handovers or idle members"
        raise OptionError("EHB_OPTION_INVALID", option="strategy", value=repr(strategy), allowed=reason)
    if "handover_timeout" in values:
        raise _not_applicable("handoverTimeout", f"{processors}, which do not support handovers")
    values.setdefault("lease_duration", PROCESSOR_LEASE_DURATION)


def _pop_prefixed(given: dict[str, str], prefix: str) -> dict[str, str]:
    """Remove the options with this prefix from `given`, and return them without the prefix."""
    names = [key for key in given if key.startswith(prefix.lower())]
    return {key[len(prefix) :]: given.pop(key) for key in names}


def _reject_secret(name: str, text: str) -> None:
    reject_secret(name, text, f"connectionString, clientSecret and {_STORAGE_SECRET}*")


def _strategy_parameters(given: Mapping[str, str], strategy: str) -> Parameters:
    own = parameter_options(strategy)
    for name in STRATEGY_OPTIONS:
        if name.lower() in given and name not in own:
            raise _not_applicable(name, f"the strategy is {strategy}")
    kind = PARAMETERS[strategy]
    return kind(**parse_options(given, kind, f"{strategy}."))
