"""Which batch is finished, as far as Spark 4.0 and 4.1 tell. Pure.

From 4.2 on, Spark says with every `latestOffset(start, limit)` that the batch that ends at `start` is finished. Before,
it asks `latestOffset()`, and all that it tells is in what it asks for when:

    restart               `partitions(e, e)`, where `e` is the newest end in its log
    that batch is re-run  `partitions(s, e)`
    a batch is run        `partitions(s, e)`, where `e` is what `latestOffset()` has answered
    batch by batch        `latestOffset()` again only once the batch before is finished

A first `latestOffset()` before any `partitions` means that there is no checkpoint.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_ehbalance.errors import OptionError

_Offset = Mapping[str, Any]

#: With Spark 4.0 and 4.1, Spark then requests a new batch before it passes the end of the logged one.
_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


class BatchState(enum.Enum):
    """What is known of the batch with the newest end."""

    #: This process has answered its end. Whether it is logged is not known.
    ANSWERED = enum.auto()
    #: It is logged, and this process has given out its partitions.
    RUN = enum.auto()
    #: It is logged, and finished unless Spark asks for its partitions.
    LOGGED = enum.auto()


@dataclass(frozen=True, slots=True)
class NewestBatch:
    """The newest end of a batch as far as one process of a query knows; None before there is one. Ends are JSON."""

    newest: dict[str, Any] | None = None
    state: BatchState = BatchState.LOGGED

    @property
    def pending(self) -> dict[str, Any] | None:
        """`latestOffset()` is called: the end to answer again, because it is not known to be logged. Spark asks again
        if it has found that a batch's rows are of no use to the query, so that nothing is lost by it."""
        return self.newest if self.state is BatchState.ANSWERED else None

    @property
    def finished(self) -> dict[str, Any] | None:
        """`latestOffset()` is called, and nothing is `pending`: the end of the last finished batch; None if there was
        none yet."""
        return None if self.state is BatchState.ANSWERED else self.newest

    @property
    def in_doubt(self) -> bool:
        """Whether a batch was run that may be finished or not. Spark does not tell of the last one of a query."""
        return self.state is BatchState.RUN

    def after_answer(self, start: _Offset, end: dict[str, Any]) -> NewestBatch:
        """`latestOffset()` has answered `end`, or `start` because there is nothing to read after it."""
        return NewestBatch(end, BatchState.LOGGED if end == start else BatchState.ANSWERED)

    def after_partitions(self, start: _Offset, end: dict[str, Any]) -> NewestBatch:
        """`partitions(start, end)` is called. Raises `OptionError` if `end` was in the log when this process was
        asked for a new batch: it has planned as if there was no checkpoint."""
        if self.newest is not None and end != self.newest:
            reason = "it needs Spark 4.2; with this version, Trigger.AvailableNow reads one batch"
            raise OptionError("EHB_OPTION_NOT_APPLICABLE", option=_WRAPPER, reason=reason)
        if start == end:
            return NewestBatch(end, BatchState.LOGGED)
        return NewestBatch(end, BatchState.RUN)
