"""What the commands have in common: arguments, opening a table, and how times are shown."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

import typer

from spark_ehbalance.errors import OptionError
from spark_ehbalance.leases.delta import DeltaStore
from spark_ehbalance.options import checked_location

LeaseTable = Annotated[str, typer.Argument(help="Path or address of the lease table.")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option("--storage-option", metavar="NAME=VALUE", help="An option of the table's storage; may be repeated."),
]


def open_store(lease_table: str, storage_option: list[str] | None) -> DeltaStore:
    """The store of a lease table. Raises `OptionError`."""
    return DeltaStore(checked_location(lease_table), pairs(storage_option))


def pairs(texts: list[str] | None) -> dict[str, str]:
    """NAME=VALUE texts as a dict. Raises `OptionError`."""
    for text in texts or []:
        if "=" not in text:
            # What was meant as a value may be a secret: it is not repeated.
            raise OptionError("--storage-option is wrong: allowed is NAME=VALUE")
    return dict(text.split("=", 1) for text in texts or [])


def iso(ms: int) -> str:
    """A wall-clock time in milliseconds, as ISO 8601."""
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(timespec="milliseconds")


def age(ms: int) -> str:
    """A length of time in milliseconds, for people."""
    seconds = ms / 1000
    return f"{seconds:.0f} s" if abs(seconds) < 120 else f"{seconds / 60:.0f} min"
