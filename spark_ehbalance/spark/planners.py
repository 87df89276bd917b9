"""Messages to a query's planners, which are found through the query's progress reports."""

from __future__ import annotations

import json
import weakref
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_ehbalance.query.control_socket import Answer, PlannerAddress, send
from spark_ehbalance.query.offsets import StreamOffset
from spark_ehbalance.spark.connect_messages import PlannerMessages, send_by_server
from spark_ehbalance.spark.offset_log import end_offsets
from spark_ehbalance.spark.sessions import SPARK_ERRORS, cause, remote
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: The sessions in which `PlannerMessages` is registered.
_with_messages = weakref.WeakSet[SparkSession]()


def report_end(
    end: StreamOffset, driver: int, remote: SparkSession | None = None, **more: bool | int | None
) -> Answer | None:
    """Report to the query's planner that the sink has finished the batch that ends at `end`. `more` are additional
    fields of the message; the other parameters and the result are those of `send_to_planner`."""
    return send_to_planner(end.lineage, {"finished": end.to_json(), **more}, driver, remote)


def send_to_planner(
    lineage: str, message: dict[str, Any], driver: int, remote: SparkSession | None = None
) -> Answer | None:
    """Send a `message` (see `Planner.handle`) to the planner of the query with this `lineage`. Returns the planner's
    answer; None if there is none.

    `driver` is the process id of the JVM on the planner's machine. A planner on another machine is reached through the
    session `remote`."""
    answer = send(PlannerAddress(lineage, driver), message)
    if answer is None and remote is not None:
        try:
            if remote not in _with_messages:
                remote.dataSource.register(PlannerMessages)
                _with_messages.add(remote)
            answer = send_by_server(remote, lineage, message)
        except SPARK_ERRORS as error:
            _LOG.warning("could not send a message to the query's planner: %s", cause(error))
    return answer


def request_from_planners(query: StreamingQuery, progress: Any, question: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers of the query's planners on this machine to a `question`; see `Planner.handle`."""
    _, driver = find_driver(query)
    answers = [send(PlannerAddress(end.lineage, driver), question) for end in end_offsets(json.loads(progress.json))]
    return [answer for answer in answers if isinstance(answer, dict)]


def find_driver(query: StreamingQuery) -> tuple[SparkSession | None, int]:
    """The session through which planners on another machine are reached (None if they are on this machine), and the
    driver's process id (0 if unknown)."""
    session = remote(getattr(query, "_session", None))
    return session, 0 if session is not None else driver_of_this_process()


def driver_of_this_process() -> int:
    from pyspark import SparkContext  # a Spark Connect client has no SparkContext

    return process_id(SparkContext._jvm)


def process_id(jvm: Any) -> int:
    pid: int = jvm.java.lang.ProcessHandle.current().pid()
    return pid
