"""The main program of a job for spark-submit, and whether two settings name one table."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from spark_ehbalance import register, run
from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.exactly_once.spark_settings import few_tasks
from spark_ehbalance.exactly_once.target import is_path
from spark_ehbalance.jobs.settings import JobSettings, SettingError
from spark_ehbalance.spark.sessions import SPARK_ERRORS, cause
from spark_ehbalance.text import plain

_S = TypeVar("_S", bound=JobSettings)

#: What ends a job with exit code 1, and what ends it with 2, before it has read or written anything.
FAILED, REFUSED = 1, 2


def main(kind: type[_S], work: Callable[[SparkSession, _S], StreamingQuery | None]) -> None:
    """Run a job: read its settings, of that `kind`, and `work` with them. A query that `work` has started is waited
    for, and stopped in order at SIGTERM and SIGINT.

    Ends the program with exit code 2 if a setting is wrong, also if `work` says so by `SettingError`, and with 1 if it
    fails with an error of Spark or this package; each is one line on standard error. Returns if the job has ended, or
    its query was stopped.
    """
    # It reads the properties of spark-submit.
    if is_remote() or "SPARK_REMOTE" in os.environ:
        _end(REFUSED, "this job needs a driver of its own: submit it without --remote and SPARK_REMOTE")
    SparkContext._ensure_initialized()  # connects to spark-submit's JVM, which has the properties; starts no Spark yet
    try:
        conf = dict(SparkConf().getAll())
        settings = kind.read(conf, os.environ)
        spark = SparkSession.builder.config(map={**few_tasks(conf)}).getOrCreate()
        register(spark)
        query = work(spark, settings)
        if query is not None:
            run(query)
    except SettingError as error:
        _end(REFUSED, str(error))
    except (EhBalanceError, *SPARK_ERRORS) as error:
        _end(FAILED, why(error))
    spark.stop()


def say(text: str) -> None:
    """Print a line of progress to standard error."""
    print(plain(text), file=sys.stderr, flush=True)


def why(error: Exception) -> str:
    """The line that says why: that of this package, if there is one in what Spark says."""
    text = str(error)
    if isinstance(error, EhBalanceError):
        return text
    found = re.findall(r"spark_ehbalance\.errors\.\w+: ([^\n]*)", text)
    return found[-1] if found else cause(error)


def _end(code: int, text: str) -> NoReturn:
    say(f"Error: {text}")
    sys.exit(code)


def overlap(one: str, other: str) -> bool:
    """Whether two settings name the same table, or one whose folder lies in the other's, by their texts alone."""
    if is_path(one) != is_path(other):
        return False
    first, second = (_folder(each) if is_path(each) else _whole_name(each) for each in (one, other))
    return first.startswith(second) or second.startswith(first)


def _folder(text: str) -> str:
    """The one spelling of a path or an address, with a slash behind it."""
    path = re.sub(r"^file:(//(localhost)?(?=/))?", "", text)
    scheme, slashes, rest = path.rpartition("://")
    whole = posixpath.normpath(rest) if slashes else posixpath.abspath(path)
    return f"{scheme.lower()}{slashes}{re.sub('^//', '/', whole)}".rstrip("/") + "/"


def _whole_name(text: str) -> str:
    """A name in the catalog with what Spark adds by default, in lower case, and a dot behind it."""
    parts = [each.strip("`").lower() for each in re.findall(r"`(?:[^`]|``)*`|[^.`]+", text)]
    return ".".join([*("spark_catalog", "default")[: max(3 - len(parts), 0)], *parts]) + "."
