"""The options of `df.write.format("ehbalance")` and `df.writeStream`: each is declared once, as those of the source."""

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

#: What Spark passes on, in lower case, and needs itself.
CHECKPOINT_LOCATION = "checkpointlocation"

#: The values of the option `onUnsendable`.
UNSENDABLE = FAIL, SKIP = ("fail", "skip")


@dataclass(frozen=True)
class WriteOptions:
    """All options of writing, checked. Times are in seconds."""

    connection: Connection = field(metadata={"options": CONNECTION_OPTIONS})
    kafka_columns: bool = option_field(
        False, flag, "take the [columns of Spark's Kafka sink](writing.md#columns): `value`, `key`, `headers`"
    )
    json_properties: bool = option_field(
        False,
        flag,
        "the values of `properties` are JSON, as the source writes them with the same option: so numbers, booleans and "
        "binary are sent as such",
    )
    #: Losing events silently must be asked for.
    on_unsendable: str = option_field(
        FAIL,
        one_of(*UNSENDABLE),
        "a row that [cannot be sent](writing.md#rows-that-cannot-be-sent): `fail` the task, or `skip` the row, which a "
        "warning counts",
    )
    #: That of the client.
    send_timeout: float = option_field(
        60.0,
        parse_duration,
        "a task fails if the hub takes no batch for this long, in all attempts together, and sends one that has no "
        "answer again after half of it; while the hub answers that it is busy, that does not count",
    )


#: Option name → declaration.
WRITE_OPTIONS: dict[str, OptionSpec] = CONNECTION_OPTIONS | {
    option_name(name): each for name, each in declarations(WriteOptions).items()
}


def write_options(raw: Mapping[str, str], of_reading: Iterable[str] = ()) -> WriteOptions:
    """From keys in any case; `of_reading` are the options that a reader has. Raises `OptionError`."""
    given = {key.lower(): str(value).strip() for key, value in raw.items() if value is not None}
    given.pop(CHECKPOINT_LOCATION, None)
    names = {name.lower(): name for name in WRITE_OPTIONS}
    if unknown := sorted(given.keys() - names.keys()):
        raise _no_such_option(unknown[0], {name.lower(): name for name in of_reading})
    for key, text in given.items():
        if key not in SECRET_OPTIONS:
            reject_secret(names[key], text, "connectionString and clientSecret")
    connection = Connection.from_options({name: given.get(name.lower()) for name in CONNECTION_OPTIONS})
    return WriteOptions(connection, **parse_options(given, WriteOptions))


def _no_such_option(key: str, of_reading: Mapping[str, str]) -> OptionError:
    if key == "path":
        return OptionError("an event hub has no path, as in save(PATH) or start(PATH): eventHubName is the event hub")
    if key in of_reading:
        return OptionError(f"df.write has no option {of_reading[key]}: it is for reading, leave it out")
    alike = did_you_mean(key, WRITE_OPTIONS)
    return OptionError(f"there is no option {redacted(key)} for df.write{alike}: docs/writing.md lists all")
