"""The options of `df.write.format("ehbalance")` and `df.writeStream`, each declared once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.connection import Connection
from spark_ehbalance.eventhub.connection_options import CONNECTION_OPTIONS, SECRET_OPTIONS
from spark_ehbalance.settings.option_specs import OptionSpec, declarations, option_field, option_name
from spark_ehbalance.settings.option_texts import parse_options, reject_secret
from spark_ehbalance.settings.parsing import flag, one_of, parse_duration
from spark_ehbalance.settings.secrets import redacted
from spark_ehbalance.settings.suggestions import did_you_mean

#: One of Spark's own options that Spark passes on to the sink, in lower case.
CHECKPOINT_LOCATION = "checkpointlocation"

#: The values of the option `onUnsendable`.
UNSENDABLE = FAIL, SKIP = ("fail", "skip")


@dataclass(frozen=True)
class WriteOptions:
    """All write options, parsed. Times are in seconds."""

    connection: Connection = field(metadata={"options": CONNECTION_OPTIONS})
    kafka_columns: bool = option_field(
        False, flag, "accept the [columns of Spark's Kafka sink](writing.md#columns): `value`, `key`, `headers`"
    )
    json_properties: bool = option_field(
        False,
        flag,
        "parse the values of `properties` as JSON (as the source returns them with the same option), so that numbers, "
        "booleans and binary keep their types",
    )
    #: Skipping must be enabled explicitly, because it loses rows.
    on_unsendable: str = option_field(
        FAIL,
        one_of(*UNSENDABLE),
        "what to do with a row that [cannot be sent](writing.md#rows-that-cannot-be-sent): `fail` the task, or `skip` "
        "the row and count it in a warning",
    )
    #: The same default as azure-eventhub's.
    send_timeout: float = option_field(
        60.0,
        parse_duration,
        "a task fails if, across all attempts, the hub accepts no batch for this long; time during which the hub is "
        "throttling is not counted. A batch that is not acknowledged within half of this time is sent again",
    )


#: Option name → declaration.
WRITE_OPTIONS: dict[str, OptionSpec] = CONNECTION_OPTIONS | {
    option_name(name): declaration for name, declaration in declarations(WriteOptions).items()
}


def write_options(raw: Mapping[str, str], read_options: Iterable[str] = ()) -> WriteOptions:
    """Parse options, whose names are case-insensitive. `read_options` are the names of the source's options. Raises
    `OptionError`."""
    options = {key.lower(): str(value).strip() for key, value in raw.items() if value is not None}
    options.pop(CHECKPOINT_LOCATION, None)
    names = {name.lower(): name for name in WRITE_OPTIONS}
    if unknown := sorted(options.keys() - names.keys()):
        raise _unknown_option(unknown[0], {name.lower(): name for name in read_options})
    for key, text in options.items():
        if key not in SECRET_OPTIONS:
            reject_secret(names[key], text, "connectionString and clientSecret")
    connection = Connection.from_options({name: options.get(name.lower()) for name in CONNECTION_OPTIONS})
    return WriteOptions(connection, **parse_options(options, WriteOptions))


def _unknown_option(key: str, read_options: Mapping[str, str]) -> OptionError:
    option, hint = redacted(key), did_you_mean(key, WRITE_OPTIONS)
    if key == "path":
        option, hint = "path", ", because an event hub has no path: do not pass one to save() or start()"
    elif key in read_options:
        option, hint = read_options[key], ": it is an option for reading"
    return OptionError("EHB_OPTION_UNKNOWN", option=option, where="df.write", hint=hint)
