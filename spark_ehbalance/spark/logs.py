"""Logging of planners and executors' Python workers, to stderr, which Spark passes on to its own."""

from __future__ import annotations

import logging
import os
import time

#: The environment variable with the level, such as INFO (changes of ownership, decisions) or DEBUG (also what they were
#: based on).
LEVEL_VARIABLE = "EHBALANCE_LOG_LEVEL"


#: The environment variable that, if it is "json", makes each line an object with the fields of Spark's structured logs.
#: Spark does not tell its Python processes whether those are on, and passes on their stderr as it is.
FORMAT_VARIABLE = "EHBALANCE_LOG_FORMAT"


def set_up_logging() -> None:
    """Log to stderr at the level of `LEVEL_VARIABLE`; if it is not set, warnings and errors, as Python does. May be
    called again."""
    level = os.environ.get(LEVEL_VARIABLE, "").upper()
    logger = logging.getLogger("spark_ehbalance")
    level_is_set = logging.getLevelName(level) != f"Level {level}"
    if logger.handlers or (not level_is_set and logger.hasHandlers()):
        return
    handler = logging.StreamHandler()
    line = "%(asctime)s %(levelname)s ehbalance %(threadName)s: %(message)s" if level_is_set else None
    as_json = os.environ.get(FORMAT_VARIABLE, "").lower() == "json"
    handler.setFormatter(_json_formatter() if as_json else logging.Formatter(line))
    handler.addFilter(_with_context)
    logger.addHandler(handler)
    if level_is_set:
        logger.setLevel(level)


def _json_formatter() -> logging.Formatter:
    """Spark's own for Python, with times as the JVM writes them: Python's would be local ones without a zone."""
    from pyspark.logger.logger import JSONFormatter

    formatter = JSONFormatter()
    formatter.converter = time.gmtime
    formatter.default_time_format, formatter.default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"
    return formatter


def _with_context(record: logging.LogRecord) -> bool:
    """A filter that lets all records pass, with what Spark's formatter takes as their context."""
    record.__dict__["context"] = {"thread": str(record.threadName)}
    return True
