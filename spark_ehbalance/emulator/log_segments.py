"""Segments: the parts of a partition's log that are deleted as a whole, in memory or one file each.

`position` is the position of a segment's first byte in the partition.
"""

from __future__ import annotations

from pathlib import Path


class LogCorruptError(RuntimeError):
    """A log's files do not fit together."""


class MemorySegment:
    """A segment that ends with the process."""

    def __init__(self, first_sequence_number: int, position: int) -> None:
        self.first_sequence_number = first_sequence_number
        self.position = position
        self._data = bytearray()

    @property
    def size(self) -> int:
        return len(self._data)

    def append(self, records: bytes) -> None:
        self._data += records

    def read(self, start: int, end: int) -> bytearray:
        """A copy of the bytes from `start` to `end`, counted from the beginning of the segment."""
        return self._data[start:end]

    def truncate(self, size: int) -> None:
        del self._data[size:]

    def delete(self) -> None:
        pass


class FileSegment:
    """A file named after the sequence number and position of its first record.

    It is open only during a call: a namespace may have more partitions than a process may have open files.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file. Raises ValueError if its name is not that of a segment, OSError."""
        self.path = path
        self.first_sequence_number, self.position = (int(part) for part in path.stem.split("-"))
        path.touch()
        self.size = path.stat().st_size

    @classmethod
    def create(cls, directory: Path, first_sequence_number: int, position: int) -> FileSegment:
        return cls(directory / f"{first_sequence_number:020d}-{position:020d}.log")

    def append(self, records: bytes) -> None:
        """Add records at the end. Raises OSError, and then the file is as it was before."""
        try:
            with open(self.path, "ab") as file:
                file.write(records)
        except OSError:
            self.truncate(self.size)  # a partial record would hide all that follow it
            raise
        self.size += len(records)

    def read(self, start: int, end: int) -> bytearray:
        """The bytes from `start` to `end`. Raises OSError, and LogCorruptError if the file has become shorter."""
        data = bytearray(end - start)
        with open(self.path, "rb") as file:
            file.seek(start)
            if file.readinto(data) != len(data):
                raise LogCorruptError(f"{self.path} is shorter than it was")
        return data

    def truncate(self, size: int) -> None:
        with open(self.path, "ab") as file:
            file.truncate(size)
        self.size = size

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)
