"""The lease store on a Delta table, read and written by delta-rs: no JVM, no coordinator.

| file | what it holds |
|---|---|
| `store` | `DeltaStore`: the compare-and-swap, races and commits of unknown outcome |
| `version` | one version of the table, read as a snapshot and written as one file with one commit |
| `table_format` | the columns, and snapshots as rows |
| `folder` | the table's files, and delta-rs's errors as ours |
| `log` | checks of the log's files |
| `history` | the table of ownership changes |
| `maintenance` | removal of files that are not needed any more |
| `repair`, `recovery` | repair of a damaged table, and which leases are the latest |
| `locations` | where a table may be |
"""

from spark_ehbalance.stores.delta.store import DeltaStore

__all__ = ["DeltaStore"]
