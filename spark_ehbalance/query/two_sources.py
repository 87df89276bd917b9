"""Finds two sources of one query that read with one lease table, as a join of two `load()`s has.

They are two members of the group, each event goes to one of the two, and the join finds nothing. No planner knows its
query, but tasks do. So in the first batch one task of each source tells its planner, and asks the others on the machine
whether they are of the same query. It can do so where tasks run on the driver's machine. Elsewhere the listener of
`spark_ehbalance.register` sees both after the first batch.
"""

from __future__ import annotations

from spark_ehbalance.errors import OptionError
from spark_ehbalance.query.control_socket import PlannerAddress, send_to_all
from spark_ehbalance.query.offsets import group_name

#: What Spark tells a task: the query, and the run of it, as its job group.
_QUERY, _RUN = "sql.streaming.queryId", "spark.jobGroup.id"


def check_one_source(lease_table: str | None, planner: PlannerAddress) -> None:
    """Called by a task of that planner. Raises `two_sources`."""
    from pyspark import TaskContext  # a client of Spark Connect has none, and no tasks

    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY) if context else None
    if context is None or query is None:
        return
    run, group = f"{query} {context.getLocalProperty(_RUN)}", group_name(lease_table)
    # Each tells its planner before it asks, so that of two tasks at once one finds the other.
    if send_to_all(planner, {"query": run, "planner": list(planner), "group": group}):
        raise two_sources(lease_table)


def two_sources(lease_table: str | None) -> OptionError:
    """The error of a query that has two sources with one lease table."""
    return OptionError("EHB_TWO_SOURCES", lease_table=lease_table)
