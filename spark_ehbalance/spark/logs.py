"""Logging to stderr for planners and for executors' Python workers. Spark forwards the messages to its own stderr."""

from __future__ import annotations

import logging
import os
import sys

#: The environment variable that sets the level, such as INFO (ownership changes and decisions) or DEBUG (also their
#: inputs).
LEVEL_VARIABLE = "EHBALANCE_LOG_LEVEL"


class _Lines(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr, unless the root logger has handlers: since Spark 4.1, Spark's worker logging captures stderr as
    well as the root logger, so messages would appear twice."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr
            super().emit(record)


def set_up_logging() -> None:
    """Log to stderr at the level of `LEVEL_VARIABLE`, by default warnings and errors. May be called again."""
    logger = logging.getLogger("spark_ehbalance")
    if logger.handlers:
        return
    level = os.environ.get(LEVEL_VARIABLE, "").upper()
    level_is_set = logging.getLevelName(level) != f"Level {level}"
    handler = _Lines()
    line = "%(asctime)s %(levelname)s ehbalance %(threadName)s: %(message)s" if level_is_set else None
    handler.setFormatter(logging.Formatter(line))
    logger.addHandler(handler)
    if level_is_set:
        logger.setLevel(level)
