"""Clean up the lease tables of all groups in a folder, more thoroughly than the groups' leaders do.

    spark-submit --properties-file conf/maintain_leases.conf jobs/maintain_leases.py

It does what `ehbalance maintain` does, while the queries run: old files of each table go, and its history is compacted.
Files that the tables did not write stay. A line for each table says what was done; one that cannot be cleaned up does
not stop the others, and lets the job end with exit code 1. Settings: conf/maintain_leases.conf.
"""

from __future__ import annotations

import time

from pyspark.sql import SparkSession

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.job import main, say
from spark_ehbalance.job.leases import LeaseTables
from spark_ehbalance.stores.base import LeaseTable


def clean_up(table: LeaseTable, location: str) -> str:
    """Clean up one table. Returns what was done."""
    began, group = time.monotonic(), table.read().group
    table.maintain()
    return f"{location}, of {group}, was cleaned up in {time.monotonic() - began:.1f} s"


def maintain(_: SparkSession, settings: LeaseTables) -> None:
    """Clean up all tables. Raises `EhBalanceError` if one could not be."""
    failed = total = 0
    for location, done in settings.each(clean_up):
        total += 1
        failed += isinstance(done, EhBalanceError)
        say(f"{location} was not cleaned up: {done}" if isinstance(done, EhBalanceError) else done)
    if failed:
        raise EhBalanceError(f"{failed} of {total} lease tables could not be cleaned up")


if __name__ == "__main__":
    main(LeaseTables, maintain)
