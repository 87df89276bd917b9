"""The Spark data source: options in, offsets and record batches out.

In a query's planner: `datasource` (Spark's calls), `planner`, `engine` (what the query does), `batch_planning` (what a
batch reads), `progress_policy` (what its offset names), `offsets`. `assembly` starts a planner; `start_checks` checks
the lease table by `past`.
In executors: `datasource`, `concurrent_reader` (the ranges of a task), `range_reader`, `receivers`.
"""
