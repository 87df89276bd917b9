"""What is said of options that do not exist: each says what to write instead, as far as that can be known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_ehbalance.errors import OptionError
from spark_ehbalance.sink.options import WRITE_OPTIONS
from spark_ehbalance.values.secrets import could_be_secret, shown
from spark_ehbalance.values.suggestions import nearest

#: Options that Spark adds for what this source does not have, in lower case.
_OF_SPARK = {
    "path": "ehbalance has no path, as in load(PATH), save(PATH) or option path: eventHubName is the event hub, "
    "leaseTable the path of the lease table",
    "checkpointlocation": "checkpointLocation is an option of df.writeStream, leave it out here",
}

_LIST = "docs/options.md lists all"

#: What Spark puts before the options of a table in a catalog.
_OF_TABLE = "option."


def no_such_option(key: str, where: str, here: Iterable[str], elsewhere: Mapping[str, str]) -> OptionError:
    """The error for the option `key`, which `where` does not have. It has those of `here`; those of `elsewhere`, by
    their keys, are for the other kind of query."""
    if key in _OF_SPARK:
        return OptionError(_OF_SPARK[key])
    if key.startswith(_OF_TABLE):
        return OptionError(
            "ehbalance has no tables in a catalog, which would keep and show the connection: use CREATE TEMPORARY VIEW "
            "NAME USING ehbalance OPTIONS (...), or spark.read"
        )
    if key in elsewhere:
        other = "spark.read" if where == "spark.readStream" else "spark.readStream"
        return OptionError(f"{where} has no option {elsewhere[key]}: it is for {other}, leave it out")
    writing = {name.lower(): name for name in WRITE_OPTIONS}
    if key in writing:
        return OptionError(f"{where} has no option {writing[key]}: it is for df.write, leave it out")
    if could_be_secret(key):
        return OptionError(f"there is no option {shown(key)}: {_LIST}")
    here = sorted(here)
    if alike := nearest(key, [*here, *writing.values()]):  # what is to be done may not be known yet
        return OptionError(f"there is no option {shown(key)}: did you mean {alike[0]}?")
    first, second, third = nearest(key, here, most=3, alike=0)
    return OptionError(
        f"there is no option {shown(key)} for {where}: the nearest are {first}, {second} and {third}; {_LIST}"
    )
