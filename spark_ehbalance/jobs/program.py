"""The main program of a job for spark-submit."""

from __future__ import annotations

import os
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
from spark_ehbalance.exactly_once.spark_settings import local_task_settings
from spark_ehbalance.jobs.settings import JobSettings, SettingError
from spark_ehbalance.spark.sessions import SPARK_ERRORS, cause
from spark_ehbalance.text import plain

_S = TypeVar("_S", bound=JobSettings)

#: Exit codes. With `REFUSED`, the job has neither read nor written anything.
FAILED, REFUSED = 1, 2


def main(kind: type[_S], work: Callable[[SparkSession, _S], StreamingQuery | None]) -> None:
    """Run `work` with the job's settings, an instance of `kind`. If `work` returns a query, wait for it, and stop it
    gracefully on SIGTERM or SIGINT.

    Exits with 2 for an invalid setting, including a `SettingError` raised by `work`, and with 1 for an error from Spark
    or this package; in each case, prints one line to standard error. Returns when the job has ended or its query has
    been stopped.
    """
    if is_remote() or "SPARK_REMOTE" in os.environ:
        _end(REFUSED, "this job needs its own driver: submit it without --remote, and unset SPARK_REMOTE")
    SparkContext._ensure_initialized()  # connects to spark-submit's JVM to read its properties; does not start Spark
    try:
        conf = dict(SparkConf().getAll())
        settings = kind.read(conf, os.environ)
        spark = SparkSession.builder.config(map={**local_task_settings(conf)}).getOrCreate()
        register(spark)
        query = work(spark, settings)
        if query is not None:
            run(query)
    except SettingError as error:
        _end(REFUSED, str(error))
    except (EhBalanceError, *SPARK_ERRORS) as error:
        _end(FAILED, single_line(error))
    spark.stop()


def print_progress(text: str) -> None:
    """Print a line of progress to standard error."""
    print(plain(text), file=sys.stderr, flush=True)


def single_line(error: Exception) -> str:
    """The error on one line. If Spark's message contains an error from this package, only that error is returned."""
    text = str(error)
    if isinstance(error, EhBalanceError):
        return text
    lines = re.findall(r"spark_ehbalance\.errors\.\w+: ([^\n]*)", text)
    return lines[-1] if lines else cause(error)


def _end(code: int, text: str) -> NoReturn:
    print_progress(f"Error: {text}")
    sys.exit(code)
