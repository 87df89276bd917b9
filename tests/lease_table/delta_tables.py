"""Helpers for tests of the Delta store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from spark_ehbalance.errors import EhBalanceError
from spark_ehbalance.group.changes import Heartbeat
from spark_ehbalance.group.history import OwnershipChange
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.lease_table.store_conformance import BOB, committed

#: An age at which every removable file is removed.
HOUR_AGO = time.time() - 3700


def change(number: int) -> OwnershipChange:
    """A history entry whose time and epoch are `number`."""
    return OwnershipChange(number, "0", "Claim", None, "ann", number, None, "ann")


def commit_by_bob(uri: str) -> None:
    """Commit through a separate handle."""
    with DeltaStore(uri) as store:
        committed(store, Heartbeat(by=BOB, at_ms=9))


def age(files: Iterable[Path], changed: float) -> None:
    """Set the times of `files`, in seconds since 1970."""
    for file in files:
        os.utime(file, (changed, changed))


def age_all(uri: str) -> None:
    """Age all complete files of the table by an hour."""
    age((*data_files(uri), *Path(uri, "_delta_log").iterdir()), HOUR_AGO)


def data_files(uri: str) -> set[Path]:
    """The table's data files, committed or not."""
    return set(Path(uri).glob("*.parquet"))


def assert_one_line_with(location: str, error: pytest.ExceptionInfo[EhBalanceError]) -> None:
    message = str(error.value)
    assert location in message
    assert "\n" not in message
