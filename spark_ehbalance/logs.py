"""Logs of the planner and of the executors' workers, which Spark passes on to the driver's and executors' stderr."""

from __future__ import annotations

import logging
import os

#: The environment variable that sets the level, such as INFO (changes of ownership, and decisions) or DEBUG (also what
#: they were based on).
LEVEL_VARIABLE = "EHBALANCE_LOG_LEVEL"


def set_up_logging() -> None:
    """Log to stderr as the environment says; without a word from it, Python's default stays: warnings and worse."""
    level = os.environ.get(LEVEL_VARIABLE, "").upper()
    logger = logging.getLogger("spark_ehbalance")
    if logging.getLevelName(level) == f"Level {level}" or logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s ehbalance %(threadName)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level)
