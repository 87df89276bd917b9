"""The lease store on a Delta table: no JVM, no coordinator.

| file | what it holds |
|---|---|
| `store` | `DeltaStore`: the compare-and-swap, races and commits of unknown outcome |
| `table_format` | the columns, and snapshots as rows |
| `folder` | the table's files, and delta-rs's errors as ours |
| `names` | the names of its files, which nobody else gives |
| `log` | the log's files: commits, checkpoints, checks for damage |
| `history` | the table of ownership changes |
| `maintenance` | removal of files that are not needed any more |
| `locations` | where a table may be |
"""

from spark_ehbalance.lease_table.delta.store import DeltaStore

__all__ = ["DeltaStore"]
