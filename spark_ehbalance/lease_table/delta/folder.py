"""The folder of a Delta table. obstore accesses the files and delta-rs opens the table; the errors of both are turned
into this package's."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import ObjectStore

from spark_ehbalance.errors import StoreFormatError, StoreUnavailableError
from spark_ehbalance.lease_table.delta.locations import library_arguments
from spark_ehbalance.lease_table.delta.names import LOG, is_left_over, is_of_a_version
from spark_ehbalance.lease_table.delta.storage import open_storage
from spark_ehbalance.lease_table.identity import StorageTokens, split
from spark_ehbalance.settings.secrets import hide, secret_values

#: Errors that delta-rs and obstore raise for storage failures and unreadable content.
BACKEND_ERRORS = (OSError, DeltaError, BaseError, ValueError, KeyError)

#: Number of files removed with one request, which is Azure's maximum.
_MAX_REMOVALS = 256

#: Maximum number of files named in an error.
_MAX_SHOWN = 3


class File(NamedTuple):
    """A file's name, its size in bytes, and the time of its last change in seconds since 1970 by the storage's
    clock."""

    name: str
    size: int
    changed: float


class Folder:
    """The folder at `uri`, with delta-rs's `options` for its storage. `title` is the folder's name in errors.

    File names are relative to the folder. Methods raise `BACKEND_ERRORS`, which `errors` translates.
    """

    def __init__(self, uri: str, options: Mapping[str, str], title: str | None = None) -> None:
        """Raises `OptionError` for an invalid credential in the options."""
        self.uri = uri
        self.options = dict(options)
        identity, plain_options = split(self.options)
        self._address, self._plain_options = library_arguments(uri, plain_options)
        self._tokens = None if identity is None else StorageTokens(identity)
        #: delta-rs's last token, as an option, and its expiry in seconds since 1970.
        self.token: tuple[dict[str, str], float] = {}, math.inf
        self._title = title or uri
        self._storage: ObjectStore | None = None

    @property
    def is_local(self) -> bool:
        """Whether the folder is on a local path. Storage services write files atomically, but if the machine crashes, a
        local file may be truncated."""
        return "://" not in self.uri

    def delta_options(self) -> dict[str, str]:
        """delta-rs's options with a valid token. Raises `StoreUnavailableError` if there is none."""
        if self._tokens is None:
            return self._plain_options
        self.token = self._tokens.option()
        return self._plain_options | self.token[0]

    def is_table(self) -> bool:
        """Whether the folder contains a Delta table. delta-rs's own check accepts any file in the log. Raises
        `StoreUnavailableError` if there is no token."""
        self.delta_options()  # if there is no token, its error is shorter than obstore's
        return any(is_of_a_version(file.name) for file in self.listed(LOG))

    def open_table(self) -> DeltaTable:
        """The newest version of the folder's Delta table. Raises `TableNotFoundError`."""
        try:
            return DeltaTable(self._address, storage_options=self.delta_options())
        except TableNotFoundError:
            if self.is_local:
                self.listed(LOG)  # raises `PermissionError` where delta-rs reports a missing table
            raise

    def tag(self, name: str) -> str | None:
        """The file's ETag; None if the file does not exist. This takes one request."""
        try:
            return obstore.head(self._files, name)["e_tag"] or ""
        except (FileNotFoundError, NotFoundError):
            return None

    def listed(self, folder: str = "", after: str | None = None) -> list[File]:
        """The files directly in the folder, or in its subfolder `folder` (which may be missing), sorted by name. With
        `after`, only files whose names sort after it."""
        if self.is_local:
            return [file for file in self._scanned(folder) if file.name > (after or "")]
        prefix = f"{folder}/" if folder else ""
        try:
            if after is None:
                found = [*obstore.list_with_delimiter(self._files, folder or None)["objects"]]
            else:
                offset = prefix + after
                found = [entry for chunk in obstore.list(self._files, folder or None, offset=offset) for entry in chunk]
        except FileNotFoundError:
            return []
        names = ((entry["path"].removeprefix(prefix), entry) for entry in found)
        files = [
            File(name, entry["size"], entry["last_modified"].timestamp()) for name, entry in names if "/" not in name
        ]
        return sorted(files)

    def _scanned(self, folder: str) -> list[File]:
        """The local files in `folder`, sorted by name."""
        found = list[File]()
        with contextlib.suppress(FileNotFoundError), os.scandir(os.path.join(self.uri, folder)) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # renamed or removed meanwhile
                    if entry.is_file():
                        stat = entry.stat()
                        found.append(File(entry.name, stat.st_size, stat.st_mtime))
        return sorted(found)

    def read(self, name: str) -> bytes:
        """The content of a file. Raises `FileNotFoundError`."""
        return self.read_tagged(name)[0]

    def read_tagged(self, name: str) -> tuple[bytes, str]:
        """The content and the tag of a file. Raises `FileNotFoundError`."""
        try:
            found = obstore.get(self._files, name)
            return bytes(found.bytes()), found.meta["e_tag"] or ""
        except (FileNotFoundError, NotFoundError):
            raise FileNotFoundError(name) from None  # the original error may contain a secret

    def parquet(self, name: str, schema: pa.Schema) -> pa.Table:
        """The rows of a Parquet file, in the columns of `schema`. Raises `FileNotFoundError`, and `ValueError` if the
        file lacks a column.

        Does not use Arrow's threads, because they abort a busy process one time in six if it exits soon afterwards.
        """
        file = pq.ParquetFile(pa.BufferReader(self.read(name)))
        if missing := [column for column in schema.names if column not in file.schema_arrow.names]:
            raise ValueError(f"there is no column {missing[0]}")
        rows = file.read(schema.names, use_threads=False).select(schema.names)
        return rows if rows.schema.equals(schema) else rows.cast(schema)

    def write(self, name: str, data: bytes) -> None:
        """Write or overwrite a file."""
        obstore.put(self._files, name, data, use_multipart=False)

    def create(self, name: str, data: bytes) -> str:
        """Create a file. Returns its tag. Raises `FileExistsError`."""
        try:
            return obstore.put(self._files, name, data, mode="create", use_multipart=False)["e_tag"] or ""
        except AlreadyExistsError:
            raise FileExistsError(name) from None

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, with one request for many of them. Some may be missing."""
        paths = list(names)
        if self.is_local:
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(os.path.join(self.uri, path))
            return
        for first in range(0, len(paths), _MAX_REMOVALS):
            with contextlib.suppress(FileNotFoundError, NotFoundError):  # Azure removes the others nevertheless
                obstore.delete(self._files, paths[first : first + _MAX_REMOVALS])

    def check_unused(self) -> None:
        """Raise `StoreFormatError` if the folder contains any file except those of an interrupted write."""
        found = [*islice((path for path in self._paths() if not is_left_over(path)), _MAX_SHOWN + 1)]
        if found:
            more = " and more" if len(found) > _MAX_SHOWN else ""
            problem = f"it contains other files: {', '.join(found[:_MAX_SHOWN])}{more}"
            raise StoreFormatError("EHB_LEASE_TABLE_FOREIGN", location=self.uri, problem=problem)

    def _paths(self) -> Iterator[str]:
        if not self.is_local:
            for chunk in obstore.list(self._files):  # includes empty files that mark folders
                yield from (entry["path"] for entry in chunk if entry["path"] not in ("", LOG))
            return
        for folder, folders, files in os.walk(self.uri):
            folders.sort()
            for name in sorted(files):
                yield os.path.relpath(os.path.join(folder, name), self.uri)

    def enclosing_table(self) -> str | None:
        """The Delta table whose folder contains this one, among the parent folders that can be read."""
        parent = self.uri.rstrip("/")
        while (parent := parent.rpartition("/")[0]) and not parent.endswith("/"):
            with contextlib.suppress(*BACKEND_ERRORS):
                if Folder(parent, self.options).is_table():
                    return parent
        return None

    def make(self) -> None:
        """Create the folder if it is missing, on storage that has folders."""
        if self.is_local:
            os.makedirs(self.uri, exist_ok=True)

    @contextlib.contextmanager
    def errors(self, action: str) -> Iterator[None]:
        """Turn `BACKEND_ERRORS` into `StoreUnavailableError`; `action` is a participle such as "read"."""
        try:
            yield
        except BACKEND_ERRORS as error:
            raise self.unavailable(action, error) from error

    def unavailable(self, action: str, error: Exception) -> StoreUnavailableError:
        """The error of an `action`, such as "read", that failed with `error`."""
        if self._tokens is not None and _is_refused(str(error)) and self._tokens.renew():
            self._storage = None  # because it caches the refused token
        if isinstance(error, TableNotFoundError) and action != "created":  # also raised if the folder cannot be created
            return StoreUnavailableError("EHB_LEASE_TABLE_MISSING", location=self.uri)
        text = self._text(error)
        if self.is_local and os.path.isfile(self.uri):
            text = "it is a file, not a folder"
        return StoreUnavailableError("EHB_LEASE_TABLE_UNAVAILABLE", what=self._title, action=action, reason=text)

    @property
    def _files(self) -> ObjectStore:
        if self._storage is None:
            self._storage = open_storage(self._address, self._plain_options, self._tokens)
        return self._storage

    def _text(self, error: Exception) -> str:
        """The error on one line, without secrets: delta-rs repeats the values of options that it does not understand,
        and a storage service or a gateway may repeat the request."""
        secrets = secret_values(self.options).union(self.token[0].values())
        if (text := hide(str(error), secrets)) != str(error):
            error.args = (text,)  # in tracebacks as well
        return storage_error_text(error)


def file_names(table: DeltaTable, since_ms: int = 0) -> list[str]:
    """The paths of the table's data files written at `since_ms` or later, relative to its folder."""
    files = pa.table(table.get_add_actions())
    written = files["modification_time"].cast(pa.int64()).to_pylist()
    return [name for name, at in zip(files["path"].to_pylist(), written, strict=True) if at >= since_ms]


def _is_refused(text: str) -> bool:
    """Whether the storage refused the token itself, not only the request. A response to HEAD is ambiguous."""
    return "401 Unauthorized" in text or ("403 Forbidden" in text and "<Code>Authorization" not in text)


def storage_error_text(error: Exception) -> str:
    """An error from delta-rs or obstore on one line, with its causes but without its full stop, and without the query
    parts of URLs, which may contain a token."""
    text = str(error).partition("\nDebug source:")[0]
    text = re.sub(r"//[^/@\s:]*:[^/@\s]*@", "//…@", text)
    text = " ".join(re.sub(r"\x1b\[\d*m|[↳│]", "", text).split()) or type(error).__name__
    return re.sub(r"\?[^\s?=]*=\S*", "?…", text)[:500].removesuffix(".")
