"""A micro-batch in `foreachBatch`: the events that it reads, and the partitions lost while it ran.

The batch number identifies the offset in the query's log, and the offset identifies the planner on this machine
(`query.control_socket`). Only the planner knows the exact ranges, because a replayed batch may read less than its
offset contains.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from spark_ehbalance.errors import TargetError, recreate
from spark_ehbalance.exactly_once.java import java
from spark_ehbalance.exactly_once.marks import SequenceRange, SequenceRanges
from spark_ehbalance.query.control_socket import PlannerAddress, request
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.spark.offset_log import logged

#: Seconds to wait for the planner before the batch fails, so that it is run again. The machine may be busy, or the
#: lease table may be unreachable.
PATIENCE = 120.0

#: The local property in which Spark stores the query's id for the threads that run it.
_QUERY_ID = "sql.streaming.queryId"


class MicroBatch:
    """One batch of a query with one `ehbalance` source."""

    def __init__(self, df: DataFrame, batch_id: int) -> None:
        """Raises `TargetError` if `df` is not the frame of the batch, or if the query does not have exactly one
        `ehbalance` source."""
        query = _query(df)
        #: Spark's id of the query, from its checkpoint.
        self.query = str(query.id())
        #: Spark's id of the current run of the query.
        self.run = str(query.runId())
        self._end = _end(query, batch_id)
        # The offset's run does not identify the planner, because the offset may be from an earlier process or a copied
        # checkpoint.
        self._planner = PlannerAddress(self._end.lineage, java(df.sparkSession._jvm).pid)
        #: Spark's folder for the query's state, which may not exist.
        self._state = java(df.sparkSession._jvm).path(query.resolvedCheckpointRoot(), "state")
        self._configuration = df._jdf.sparkSession().sessionState().newHadoopConf()
        #: The events to read.
        self.read: SequenceRanges = {}
        self.last: Mapping[str, str] = {}
        # If the end offset did not change, the batch contains only other sources' events or only updates Spark's state.
        # A replay of such a batch does not start the planner.
        if batch_id > 0 and logged(query, batch_id - 1) == [self._end]:
            return
        answer = self._request()
        #: The event hub with its namespace, and its creation time in milliseconds since 1970, if known.
        self.hub: str = answer["hub"]
        self.created: int | None = answer["created"]
        self.read = {p: SequenceRange(*range_) for p, range_ in answer["ranges"].items()}
        self._offsets: dict[str, list[str | None]] = answer.get("offsets", {})
        #: In a geo-replicated hub, the offset of the last event of each partition.
        self.last = {partition: last for partition, (_, last) in self._offsets.items() if last is not None}

    def find_offset(self, partition: str, sequence_number: int) -> str | None:
        """The event's current offset in a geo-replicated hub. It is empty if the hub never had this sequence number,
        and None if the event is older than the batch or the offset is unknown. Raises `TargetError` if the planner does
        not answer."""
        read, (before, last) = self.read[partition], self._offsets[partition]
        if sequence_number == read.start - 1 and before is not None:
            return before
        if sequence_number == read.end - 1 and last is not None:
            return last
        if sequence_number < read.start:
            return None
        found: str | None = self._request(event=[partition, sequence_number])["offset"]
        return found

    def lost(self) -> frozenset[str]:
        """The partitions whose lease was lost; they may not have been read to the end. Call this after reading the
        rows; by then, all other partitions have been read to the end.

        Raises `TargetError` if the planner does not answer, or if a stateful query has lost partitions. Its state would
        contain rows that are not written, so the batch must fail, which restores the state. Raises the planner's own
        error, for example if the lease table was rolled back.
        """
        deadline = time.monotonic() + PATIENCE
        while (lost := (answer := self._request(lost=True))["lost"]) is None:
            if time.monotonic() > deadline:
                reason = f"the lease table could not be read for {PATIENCE:g} s"
                reason += f" ({answer['reason']})" if "reason" in answer else ""
                raise TargetError("EHB_TARGET_BATCH_UNKNOWN", reason=reason)
        if lost and self._state.getFileSystem(self._configuration).exists(self._state):
            raise TargetError("EHB_TARGET_STATE_AHEAD", partitions=", ".join(sorted(lost)))
        return frozenset(lost)

    def _request(self, *, lost: bool = False, event: list[str | int] | None = None) -> dict[str, Any]:
        question = {"batch": self._end.to_json(), "lost": lost}
        question |= {"event": event} if event is not None else {}
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                answer = request(self._planner, question)
            except ConnectionError as error:
                raise TargetError("EHB_TARGET_BATCH_UNKNOWN", reason=str(error)) from error
            if answer is not None and "error" not in answer:
                return answer
            if answer is not None and answer["condition"] != "EHB_CONTROL_MESSAGE_INVALID":
                raise recreate(answer["condition"], answer["parameters"])
            if answer is not None or time.monotonic() > deadline:
                reason = answer["error"] if answer else f"the query's planner did not answer for {PATIENCE:g} s"
                raise TargetError("EHB_TARGET_BATCH_UNKNOWN", reason=reason)
            time.sleep(0.05)


def _invalid_call(problem: str, allowed: str) -> TargetError:
    return TargetError("EHB_TARGET_CALL_INVALID", function="write_once", problem=problem, allowed=allowed)


def _query(df: DataFrame) -> Any:
    """The query that Spark runs in this thread."""
    session = df.sparkSession
    query = session.sparkContext.getLocalProperty(_QUERY_ID)
    if query is None:
        raise _invalid_call("it was called outside foreachBatch", "a call in foreachBatch, in the thread that runs it")
    identifier = java(session._jvm).uuid(query)
    running = df._jdf.sparkSession().sharedState().activeStreamingQueries().get(identifier)
    if running is None:
        raise _invalid_call("the frame's session does not run this query", "the frame passed to foreachBatch")
    return running


def _end(query: Any, batch_id: int) -> StreamOffset:
    """The end offset of the batch."""
    ours = logged(query, batch_id)
    if ours is None:
        raise _invalid_call(f"the query has no batch {batch_id}", "the batch_id passed to foreachBatch")
    if len(ours) != 1:
        allowed = "one, because partition and sequence number identify an event only within a hub"
        raise _invalid_call(f"the query has {len(ours)} ehbalance sources", allowed)
    return ours[0]
