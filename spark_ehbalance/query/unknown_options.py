"""Error messages for unknown options, with a hint if the option belongs elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_ehbalance.errors import OptionError
from spark_ehbalance.eventhub.sending.write_options import WRITE_OPTIONS
from spark_ehbalance.settings.secrets import may_be_secret, redacted
from spark_ehbalance.settings.suggestions import did_you_mean

#: Options that Spark adds, or that belong to a writer: key → option, and hint.
_SPARK_OPTIONS = {
    "path": ("path", ": eventHubName is the event hub, leaseTable the location of the lease table"),
    "checkpointlocation": ("checkpointLocation", ", but of df.writeStream"),
}

#: Prefixes, in lower case, of the options of the Scala connector and of Spark's Kafka source.
_SCALA = "eventhubs."
_KAFKA = ("kafka", "subscribe", "startingoffset", "startingtime", "endingoffset", "endingtime", "maxoffset")

#: Prefix that Spark adds to the options of a table in a catalog.
_TABLE_PREFIX = "option."


def unknown_option(key: str, where: str, here: Iterable[str], elsewhere: Mapping[str, str]) -> OptionError:
    """The error for the unknown option `key` of `where`, which has the options `here`; `elsewhere` maps the keys of the
    other kind of query to its options."""
    if key in _SPARK_OPTIONS:
        name, hint = _SPARK_OPTIONS[key]
        return _error(name, "ehbalance", hint)
    if key.startswith(_TABLE_PREFIX):
        hint = (
            ", which does not support tables in a catalog, because they would store and show the connection: use "
            "CREATE TEMPORARY VIEW NAME USING ehbalance OPTIONS (...), or spark.read"
        )
        return _error(redacted(key), "ehbalance", hint)
    if key in elsewhere:
        other = "spark.read" if where == "spark.readStream" else "spark.readStream"
        return _error(elsewhere[key], where, f", but of {other}")
    writing = {name.lower(): name for name in WRITE_OPTIONS}
    if key in writing:
        return _error(writing[key], where, ", but of df.write")
    if key.startswith(_SCALA):
        hint = ", but of the Scala connector: see docs/migration.md#from-the-scala-connector"
        return _error(redacted(key), "ehbalance", hint)
    if key.startswith(_KAFKA):
        hint = ", but of Spark's Kafka source: see docs/migration.md#from-sparks-kafka-source"
        return _error(redacted(key), "ehbalance", hint)
    if may_be_secret(key):
        return _error(redacted(key), "ehbalance")
    if hint := did_you_mean(key, sorted([*here, *writing.values()])):  # `where` is a guess: it may be a write
        return _error(redacted(key), "ehbalance", hint)
    return _error(redacted(key), where)


def _error(option: str, where: str, hint: str = "") -> OptionError:
    return OptionError("EHB_OPTION_UNKNOWN", option=option, where=where, hint=hint)
