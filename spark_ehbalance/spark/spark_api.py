"""Classes of Spark's Python data source API that Spark 4.0 and 4.1 lack.

Those versions pass neither a read limit nor `Trigger.AvailableNow` to a reader, so they never use the stand-ins below.
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
            """Maximum size of a batch."""

        class ReadAllAvailable(ReadLimit):
            """No limit."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """Maximum number of events."""

            max_rows: int

        class SupportsTriggerAvailableNow:
            """A reader that supports `Trigger.AvailableNow`."""
