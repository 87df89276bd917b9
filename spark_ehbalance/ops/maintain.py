"""`ehbalance maintain`: clean up a lease table, or all in a folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer

from spark_ehbalance.errors import EhBalanceError, OptionError
from spark_ehbalance.lease_table.finding import lease_tables, parse_folder
from spark_ehbalance.lease_table.opening import open_store
from spark_ehbalance.ops.arguments import StorageOptions, pairs
from spark_ehbalance.ops.common import say
from spark_ehbalance.query.options import storage_options

#: Number of tables cleaned up at the same time: most of the time is spent waiting for storage.
_AT_ONCE = 16

#: Maximum number of characters shown of an unexpected error.
_MAX_ERROR = 500


def maintain(
    folder: Annotated[str, typer.Argument(help="Path or address of a lease table, or of a folder with lease tables.")],
    storage: StorageOptions,
) -> None:
    """Clean up the lease tables in a folder and below it, more thoroughly than the groups' leaders do.

    It compacts their histories. Files that the tables or their histories did not write stay. If a table cannot be
    cleaned up, the others still are, and the exit code is 1.
    """
    try:
        root = parse_folder(folder)
    except ValueError as allowed:
        raise OptionError(f"FOLDER={folder!r} is wrong: allowed is {allowed}") from None
    options = storage_options(pairs(storage.storage_option), {}, f"{root}/x", storage.identity())
    tables = [*lease_tables(root, options)]
    if not tables:
        raise EhBalanceError(f"there is no lease table in {root}")
    failed = 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for table, result in zip(tables, pool.map(lambda table: _clean_up(table, options), tables), strict=True):
            if isinstance(result, EhBalanceError) and len(tables) == 1:
                raise result
            failed += isinstance(result, EhBalanceError)
            say(f"{table} was not cleaned up: {result}" if isinstance(result, EhBalanceError) else result)
    if failed:
        raise EhBalanceError(f"{failed} of {len(tables)} lease tables could not be cleaned up")


def _clean_up(table: str, options: Mapping[str, str]) -> str | EhBalanceError:
    """Clean up one table. Returns a line for the user, or the error: one table must not stop the others."""
    began = time.monotonic()
    try:
        with open_store(table, options) as store:
            group = store.read().group
            store.maintain()
    except EhBalanceError as error:
        return error
    except Exception as error:
        return EhBalanceError(f"{type(error).__name__}: {str(error)[:_MAX_ERROR]}")
    return f"{table}, of {group}, was cleaned up in {time.monotonic() - began:.1f} s"
