"""What the versions of Spark's Python data source API do not have in common.

Spark 4.0 and 4.1 tell a reader neither a limit nor of `Trigger.AvailableNow`: there the stand-ins below take the places
of Spark's classes, and nothing of Spark asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ModuleNotFoundError:

        class ReadLimit:
            """The most that a batch is to read."""

        class ReadAllAvailable(ReadLimit):
            """No limit."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """A number of events."""

            max_rows: int

        class SupportsTriggerAvailableNow:
            """A reader that can read until the ends that it has fixed."""
