"""Logging of planners and executors' Python workers, to stderr, which Spark passes on to its own."""

from __future__ import annotations

import logging
import os

#: The environment variable with the level, such as INFO (changes of ownership, decisions) or DEBUG (also what they were
#: based on).
LEVEL_VARIABLE = "EHBALANCE_LOG_LEVEL"


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
    handler.setFormatter(logging.Formatter(line))
    logger.addHandler(handler)
    if level_is_set:
        logger.setLevel(level)
