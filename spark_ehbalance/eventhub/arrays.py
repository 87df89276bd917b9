"""Arrow arrays from numpy arrays and Python values. Arrow's own conversions import pandas, which costs each worker
0.4 s of CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def from_numpy(values: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """An array that shares the memory of `values`, which must be integers; null where the mask `present` is False."""
    values = np.ascontiguousarray(values)
    data = [_bitmap(present), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), data)


def to_numpy(array: pa.Array) -> npt.NDArray[Any]:
    """The integers of an array without nulls."""
    return np.from_dlpack(array)


def from_integers(values: Sequence[int | None]) -> pa.Int64Array:
    """An array of 64-bit integers."""
    present = np.array([value is not None for value in values], np.bool_)
    return from_numpy(np.array([value or 0 for value in values], np.int64), present)


def from_bytes(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """An array of binary or string `kind`. Raises `pa.ArrowInvalid` if a string is not UTF-8."""
    lengths = [0 if value is None else len(value) for value in values]
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    present = None if None not in values else np.array([value is not None for value in values], np.bool_)
    data = b"".join(value for value in values if value is not None)
    array = pa.Array.from_buffers(kind, len(lengths), [_bitmap(present), pa.py_buffer(offsets), pa.py_buffer(data)])
    array.validate(full=True)
    return array


def repeated(text: str | None, count: int) -> pa.StringArray:
    """An array that consists of `count` times the same text."""
    if text is None:
        return pa.nulls(count, pa.string())
    data = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data * count))


def _bitmap(mask: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if mask is None else pa.py_buffer(np.packbits(mask, bitorder="little"))
