"""The Spark data source: options in, offsets and record batches out.

In a query's planner: `planner`, `engine` (decisions), `batch_planning` (the ranges of a batch), `progress_policy` (the
contents of an offset), `offsets`. `assembly` starts a planner; `start_checks` checks that checkpoint, lease table and
hub belong together.
In executors: `concurrent_reader` (the ranges of a task), `range_reader`, `receivers`.
"""
