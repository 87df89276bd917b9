"""Arrow arrays from numpy arrays and Python values. Arrow's own conversions import pandas, which costs each worker
0.4 s of CPU."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: From this number of values on, Arrow's conversion is used: it is faster, and needs less memory.
_MANY = 100


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
    present = None if None not in values else np.array([value is not None for value in values], np.bool_)
    return from_numpy(np.array([value or 0 for value in values], np.int64), present)


def from_texts(values: Sequence[str | bytes | None], kind: pa.DataType) -> pa.Array:
    """An array of binary or string `kind`.

    Raises `pa.ArrowInvalid` or UnicodeEncodeError if a string is not UTF-8, and TypeError for values of other types.
    """
    if len(values) >= _MANY:
        return pa.array(values, kind)
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    present = None if None not in encoded else np.array([value is not None for value in encoded], np.bool_)
    offsets = array("i", accumulate((0 if value is None else len(value) for value in encoded), initial=0))
    data = b"".join(value for value in encoded if value is not None)
    found = pa.Array.from_buffers(kind, len(encoded), [_bitmap(present), pa.py_buffer(offsets), pa.py_buffer(data)])
    if kind == pa.string():
        found.validate(full=True)
    return found


def repeated(text: str | None, count: int) -> pa.StringArray:
    """An array that consists of `count` times the same text."""
    if text is None:
        return pa.nulls(count, pa.string())
    data = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data * count))


def _bitmap(mask: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if mask is None else pa.py_buffer(np.packbits(mask, bitorder="little"))
