"""Logs of the planner and of the executors' workers, which Spark passes on to the driver's and executors' stderr."""

from __future__ import annotations

import logging
import os

from spark_ehbalance.values.text import plain_lines

#: The environment variable that sets the level, such as INFO (changes of ownership, and decisions) or DEBUG (also what
#: they were based on).
LEVEL_VARIABLE = "EHBALANCE_LOG_LEVEL"


class _Plain(logging.Formatter):
    """Writes what a terminal would obey as escapes: owner ids and hosts in a line may be other people's."""

    def format(self, record: logging.LogRecord) -> str:
        return plain_lines(super().format(record))


def set_up_logging() -> None:
    """Log to stderr as the environment says; without a word from it as Python does by default: warnings and worse."""
    level = os.environ.get(LEVEL_VARIABLE, "").upper()
    logger = logging.getLogger("spark_ehbalance")
    asked = logging.getLevelName(level) != f"Level {level}"
    if logger.handlers or (not asked and logger.hasHandlers()):
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_Plain("%(asctime)s %(levelname)s ehbalance %(threadName)s: %(message)s" if asked else None))
    logger.addHandler(handler)
    if asked:
        logger.setLevel(level)
