"""What is said of options that do not exist: each says what to write instead, as far as that can be known."""

from __future__ import annotations

from collections.abc import Iterable

from spark_ehbalance.errors import OptionError
from spark_ehbalance.values.secrets import could_be_secret, shown
from spark_ehbalance.values.suggestions import nearest

#: What is said to those who want to write.
NO_SINK = (
    "ehbalance only reads an event hub: to write into one use EventHubProducerClient of azure-eventhub in "
    "foreachBatch, or Spark's Kafka sink with the namespace's port 9093; to write what was read name a sink's format, "
    "such as delta"
)

#: Options that Spark adds for what this source does not have, in lower case.
_OF_SPARK = {
    "path": "this source has no path, as in load(PATH) or option path: eventHubName is the event hub, leaseTable the "
    "path of the lease table. It only reads, so that there is no save(PATH)",
    "checkpointlocation": f"checkpointLocation is an option of a stream's writer, as is the format of its sink: "
    f"{NO_SINK}",
}

#: What Spark puts before the options of a table in a catalog.
_OF_TABLE = "option."


def no_such_option(key: str, where: str, here: Iterable[str], elsewhere: Iterable[str]) -> OptionError:
    """The error for the option `key`, which `where` does not have. It has those of `here`; those of `elsewhere` are for
    the other kind of query. Spark passes keys on in lower case, so that names that exist are written as declared."""
    here = sorted(here)
    if key in _OF_SPARK:
        return OptionError(_OF_SPARK[key])
    if key.startswith(_OF_TABLE):
        return OptionError(
            "ehbalance has no tables in a catalog, which would keep and show the connection: use CREATE TEMPORARY VIEW "
            "NAME USING ehbalance OPTIONS (...), or spark.read"
        )
    for name in elsewhere:
        if key == name.lower():
            other = "spark.read" if where == "spark.readStream" else "spark.readStream"
            return OptionError(f"{where} has no option {name}: it is for {other}, leave it out")
    alike = None if could_be_secret(key) else nearest(key, here)
    if alike is not None:
        return OptionError(f"there is no option {shown(key)}: did you mean {alike}?")
    return OptionError(f"there is no option {shown(key)}: for {where} there are {', '.join(here)}")
