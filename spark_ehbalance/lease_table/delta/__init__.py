"""The lease store on a Delta table: no JVM, no coordinator.

| module | content |
|---|---|
| `store` | `DeltaStore`: the compare-and-swap, races and commits of unknown outcome |
| `table_format` | the columns, and snapshots as rows |
| `folder` | access to the table's files; turns delta-rs's errors into this package's |
| `names` | the names of the store's files, which no other program uses |
| `log` | the log's files: commits, checkpoints, checks for damage |
| `history` | the table of ownership changes |
| `maintenance` | removal of obsolete files |
| `locations` | valid locations of a table |
"""
