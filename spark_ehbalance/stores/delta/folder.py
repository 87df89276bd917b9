"""The folder of a Delta table: its files one by one, by way of delta-rs, whose errors become ours here."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from spark_ehbalance.errors import StoreUnavailableError
from spark_ehbalance.values.secrets import could_be_secret, names_secret

#: What delta-rs raises where a storage fails, or holds what it cannot read.
BACKEND_ERRORS = (OSError, DeltaError, ValueError, KeyError)

#: Files that are removed at the same time: on a storage account each takes 10 to 30 ms, nearly all of it waiting.
_REMOVALS_AT_ONCE = 16


class File(NamedTuple):
    """A file's name in its folder, its size in bytes, and the time of its last change in seconds since 1970."""

    name: str
    size: int
    changed: float | None


class Folder:
    """The folder at `uri`, with delta-rs's `options` for its storage. `title` names it in errors.

    Files are named relative to the folder. Its methods raise `BACKEND_ERRORS`, to be caught with `errors`.
    """

    def __init__(self, uri: str, options: Mapping[str, str], title: str | None = None) -> None:
        self.uri = uri
        self.options = dict(options)
        self._title = title or uri
        self._handler: Any = None

    def is_table(self) -> bool:
        """Whether there is a Delta table in the folder."""
        return DeltaTable.is_deltatable(self.uri, storage_options=self.options)

    def open_table(self) -> DeltaTable:
        """The newest version of the folder's Delta table. Raises `TableNotFoundError`."""
        return DeltaTable(self.uri, storage_options=self.options)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name: one request, where listing takes several."""
        try:
            self._files.open_input_file(name)
        except FileNotFoundError:
            return False
        return True

    def listed(self, folder: str = "") -> list[File]:
        """The files in the folder, or in a `folder` of it, sorted by name; not of those below. It may be missing."""
        found = self._files.get_file_info_selector(folder, True, False)
        files = [each for each in found if each.is_file]
        return sorted(
            File(each.path.rsplit("/", 1)[-1], each.size, each.mtime and each.mtime.timestamp()) for each in files
        )

    def read(self, name: str) -> bytes:
        """The content of a file. Raises `FileNotFoundError`."""
        file = self._files.open_input_file(name)
        size = file.size()
        return bytes(file.read(size)) if size else b""

    def parquet(self, name: str) -> pa.Table:
        """The rows of a Parquet file. Raises `FileNotFoundError`.

        Arrow's own readers start threads, which end a process that exits soon after by an abort, one time in six when
        busy.
        """
        return pq.ParquetFile(pa.BufferReader(self.read(name))).read(use_threads=False)

    def write(self, name: str, data: bytes) -> None:
        """Write a file, over one of this name."""
        stream = self._files.open_output_stream(name)
        stream.write(data)
        stream.close()

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; others may have removed some of them already."""
        with ThreadPoolExecutor(_REMOVALS_AT_ONCE) as pool:
            list(pool.map(self._remove, names))

    def copy(self, names: Iterable[str], to: Folder) -> None:
        """Copy files to another folder, which is made if it is missing."""
        if "://" not in to.uri:
            os.makedirs(to.uri, exist_ok=True)
        for name in names:
            to.write(name, self.read(name))

    @contextlib.contextmanager
    def errors(self, done: str) -> Iterator[None]:
        """Turns `BACKEND_ERRORS` into `StoreUnavailableError`: the folder could not be `done`."""
        try:
            yield
        except BACKEND_ERRORS as error:
            raise self.unavailable(done, error) from error

    def unavailable(self, done: str, error: Exception) -> StoreUnavailableError:
        """The folder could not be `done`, because of `error`."""
        if isinstance(error, TableNotFoundError):
            return StoreUnavailableError(f"there is no lease table at {self.uri}: `ehbalance init` makes one")
        return StoreUnavailableError(f"{self._title} could not be {done}: {self._text(error)}")

    @property
    def _files(self) -> Any:
        # The public form of delta-rs's access wraps streams for Arrow, which hands them buffers that they do not take.
        if self._handler is None:
            self._handler = DeltaStorageHandler(self.uri, self.options)._handler
        return self._handler

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.delete_file(name)

    def _text(self, error: Exception) -> str:
        """The error in one line. delta-rs repeats the value of an option that it does not understand."""
        if any(value in str(error) for name, value in self.options.items() if _hidden(name, value)):
            error.args = ("it does not understand a storage option that may hold a secret",)  # in tracebacks as well
        return one_line(error)


def _hidden(name: str, value: str) -> bool:
    return bool(value) and (names_secret(name) or could_be_secret(value))


def one_line(error: Exception) -> str:
    """delta-rs's error in one line, with its causes and without the queries of addresses, which may hold a token."""
    text = " ".join(re.sub(r"\x1b\[\d*m|[↳│]", "", str(error)).split()) or type(error).__name__
    return re.sub(r"\?\S*=\S*", "?…", text)[:500]
