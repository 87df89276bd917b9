"""Finds the lease tables in a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from spark_ehbalance.errors import StoreFormatError
from spark_ehbalance.lease_table.delta.folder import BACKEND_ERRORS, Folder
from spark_ehbalance.lease_table.delta.locations import parse_location
from spark_ehbalance.lease_table.delta.names import LOG, is_data_file
from spark_ehbalance.lease_table.delta.table_format import group_of
from spark_ehbalance.lease_table.opening import location as table_location

#: What a Spark checkpoint holds, in which there is no table and may be thousands of folders.
_CHECKPOINT = {"commits", "offsets"}


def parse_folder(text: str) -> str:
    """The one spelling of the folder that `text` means, which may be a whole container: an address, or an absolute
    path. Raises `ValueError` with what is allowed instead."""
    return table_location(f"{text.rstrip('/')}/x")[: -len("/x")] if "://" in text else table_location(text)


def lease_tables(location: str, options: Mapping[str, str]) -> Iterator[str]:
    """The locations of the lease tables in the folder at `location` and below it, or that one alone if it is a lease
    table, in the order of their names. `options` are delta-rs's for its storage.

    Links to folders are not followed. Raises `StoreUnavailableError` if a folder cannot be listed.
    """
    folder = Folder(location, options, f"the folder {location}")
    with folder.errors("listed"):
        names, inner = [each.name for each in folder.listed()], folder.folders()
    is_table = LOG in inner or any(map(is_data_file, names))
    if any(map(is_data_file, names)) or (LOG in inner and _is_empty_lease_table(folder)):
        yield folder.uri
    if is_table or {*inner} >= _CHECKPOINT:
        return
    for name in inner:
        with contextlib.suppress(ValueError):  # no lease table can be there
            yield from lease_tables(parse_location(f"{folder.uri}/{name if folder.is_local else quote(name)}"), options)


def _is_empty_lease_table(folder: Folder) -> bool:
    """Whether a Delta table without our data files is a lease table that nobody has written yet, or whose files another
    program has joined."""
    try:
        group_of(folder.open_table().metadata().description, folder.uri)
    except (*BACKEND_ERRORS, StoreFormatError):
        return False
    return True
