"""Detects two sources of one query that use one lease table, as in a join of two `load()`s.

They would be two members of the group, each event would reach only one of them, and the join would match nothing. A
planner does not know its query's id, but its tasks do. So in the first batch, one task of each source reports the id to
its planner, and checks whether another planner on the machine belongs to the same query. If tasks do not run on the
driver's machine, the listener of `spark_ehbalance.register` detects the second source after the first batch.
"""

from __future__ import annotations

from spark_ehbalance.errors import OptionError
from spark_ehbalance.query.control_socket import PlannerAddress, send_until_accepted
from spark_ehbalance.query.offsets import group_name

#: Spark's local properties of a task: the query's id and, as the job group, its run.
_QUERY, _RUN = "sql.streaming.queryId", "spark.jobGroup.id"


def check_one_source(lease_table: str | None, planner: PlannerAddress) -> None:
    """Called by a task of `planner`. Raises the error from `two_sources`."""
    from pyspark import TaskContext  # a Spark Connect client has neither this class nor tasks

    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY) if context else None
    if context is None or query is None:
        return
    run, group = f"{query} {context.getLocalProperty(_RUN)}", group_name(lease_table)
    # Each task reports to its own planner first, so that at least one of two concurrent tasks finds the other.
    if send_until_accepted(planner, {"query": run, "planner": list(planner), "group": group}):
        raise two_sources(lease_table)


def two_sources(lease_table: str | None) -> OptionError:
    """The error to raise if a query has two sources with the same lease table."""
    return OptionError("EHB_TWO_SOURCES", lease_table=lease_table)
