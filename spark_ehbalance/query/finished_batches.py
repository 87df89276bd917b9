"""The newest finished batch, inferred from the calls of Spark 4.0 and 4.1. Does no I/O.

From 4.2 on, each call of `latestOffset(start, limit)` means that the batch that ends at `start` is finished. Earlier
versions call `latestOffset()`, so the order of calls is the only evidence:

    restart               `partitions(e, e)`, where `e` is the newest end in Spark's log
    that batch is re-run  `partitions(s, e)`
    a batch is run        `partitions(s, e)`, where `e` is the last result of `latestOffset()`
    next batch            `latestOffset()`, only once the previous batch is finished

A first `latestOffset()` before any `partitions` means that there is no checkpoint.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_ehbalance.errors import OptionError

_Offset = Mapping[str, Any]

#: With this setting, Spark 4.0 and 4.1 request a new batch before they pass the end of the logged one.
_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


class BatchState(enum.Enum):
    """State of the batch with the newest end."""

    #: Returned by `latestOffset()`; perhaps not logged.
    ANSWERED = enum.auto()
    #: Logged, and this process returned its partitions.
    RUN = enum.auto()
    #: Logged, and finished unless Spark requests its partitions.
    LOGGED = enum.auto()


@dataclass(frozen=True, slots=True)
class NewestBatch:
    """The newest batch end (JSON) that one process of a query knows; None before the first batch."""

    newest: dict[str, Any] | None = None
    state: BatchState = BatchState.LOGGED

    @property
    def pending(self) -> dict[str, Any] | None:
        """The end that `latestOffset()` must return again, because Spark may not have logged it; None if there is none.
        Nothing is lost if Spark has skipped that batch: it skips a batch only if the query does not need its rows."""
        return self.newest if self.state is BatchState.ANSWERED else None

    @property
    def finished(self) -> dict[str, Any] | None:
        """The end of the last finished batch when `latestOffset()` is called and nothing is `pending`; None if there is
        none."""
        return None if self.state is BatchState.ANSWERED else self.newest

    @property
    def in_doubt(self) -> bool:
        """Whether a batch was run and may be finished. Spark does not report the end of a query's last batch."""
        return self.state is BatchState.RUN

    def after_answer(self, start: _Offset, end: dict[str, Any]) -> NewestBatch:
        """The state after `latestOffset()` returned `end`, or `start` if there is nothing to read after it."""
        return NewestBatch(end, BatchState.LOGGED if end == start else BatchState.ANSWERED)

    def after_partitions(self, start: _Offset, end: dict[str, Any]) -> NewestBatch:
        """The state after a call of `partitions(start, end)`. Raises `OptionError` if an earlier process logged `end`,
        but this process has already planned a different batch."""
        if self.newest is not None and end != self.newest:
            reason = "it needs Spark 4.2; in this version of Spark, Trigger.AvailableNow reads a single batch"
            raise OptionError("EHB_OPTION_NOT_APPLICABLE", option=_WRAPPER, reason=reason)
        if start == end:
            return NewestBatch(end, BatchState.LOGGED)
        return NewestBatch(end, BatchState.RUN)
