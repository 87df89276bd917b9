"""The Spark data source: options in, offsets and record batches out.

In a query's planner: `datasource` (Spark's calls), `planner`, `batch_planning` (what a batch reads), `progress_policy`
(what its offset names), `offsets`. `assembly` starts a planner; `joining` checks the lease table with `continuity`.
In executors: `datasource`, `concurrent_reader` (the ranges of a task), `range_reader`, `receivers`.
"""
