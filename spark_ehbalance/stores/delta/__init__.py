"""The lease store on a Delta table, read and written by delta-rs: no JVM, no coordinator."""

from spark_ehbalance.stores.delta.store import DeltaStore

__all__ = ["DeltaStore"]
