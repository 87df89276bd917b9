"""Arrow arrays from what lies in a buffer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_ehbalance.hub import rows
from spark_ehbalance.hub.wire.messages import read_application
from spark_ehbalance.hub.wire.pairs import Pairs, find_pairs
from spark_ehbalance.hub.wire.scan import BINARY, INTEGER, TEXT, Integers, Spans, integers
from spark_ehbalance.hub.wire.values import SCALARS, TEXTS


def slices(data: bytearray, spans: Spans, kind: pa.DataType) -> pa.Array:
    """A column of bytes or text, copied once: every other item of an array of which the rest are the gaps."""
    count = len(spans.starts)
    offsets = np.zeros(2 * count + 1, np.int32)
    offsets[:-1:2] = spans.starts
    offsets[1::2] = spans.starts + spans.lengths
    alternating = pa.Array.from_buffers(kind, max(0, 2 * count - 1), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return alternating.take(pa.array(np.arange(0, 2 * count, 2)))


def texts(data: bytearray, spans: Spans) -> pa.StringArray:
    """A column of texts; bytes that are not UTF-8 as `rows.optional_text` writes them."""
    column = slices(data, spans, pa.string())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:  # some are not UTF-8
        column = pa.array(map(rows.optional_text, column.cast(pa.binary()).to_pylist()), pa.string())
    return column


def repeated(text: str | None, count: int) -> pa.StringArray:
    """A column of `count` times the same text."""
    return pa.repeat(pa.scalar(text, pa.string()), count)


def optional(at: Integers, column: Callable[[Integers], pa.Array]) -> pa.Array:
    """The `column` of the indices that are not negative, with nulls in place of the negative ones."""
    missing = at < 0
    if not missing.any():
        return column(at)
    return column(at[~missing]).take(pa.array(np.cumsum(~missing) - 1, mask=missing))


def in_order(parts: list[Any], indices: list[Integers]) -> Any:
    """Parts of an array or record batch as one, in which their items have these `indices`."""
    if len(parts) == 1:
        return parts[0]
    joined = (pa.concat_arrays if isinstance(parts[0], pa.Array) else pa.concat_batches)(parts)
    return joined.take(pa.array(np.argsort(np.concatenate(indices))))


def joined(first: pa.MapArray, second: pa.MapArray) -> pa.MapArray:
    """Maps with the pairs of both. Raises ValueError if both may have the same key."""
    if not len(first.keys) or not len(second.keys):
        return first if len(first.keys) else second
    if pc.any(pc.is_in(second.keys, first.keys.unique())).as_py():
        raise ValueError("a key twice")
    offsets = [each.offsets.to_numpy() for each in (first, second)]
    maps = [np.repeat(np.arange(len(first)), np.diff(each)) for each in offsets]
    order = pa.array(np.argsort(np.concatenate(maps), kind="stable"))
    keys, items = (
        pa.concat_arrays(each).take(order) for each in ((first.keys, second.keys), (first.items, second.items))
    )
    return pa.MapArray.from_arrays(pa.array(offsets[0] + offsets[1]), keys, items)


class MapColumns:
    """Makes columns of maps; `as_json` is as for `rows.record_batch`."""

    def __init__(self, as_json: bool, sample: int, many: int) -> None:
        """`many` sections are read at once unless half of the first `sample` are alike."""
        self._json = as_json
        self._sample = sample
        self._many = many

    def of_application(self, data: bytearray, sections: Spans) -> pa.MapArray:
        """The application's properties. Raises `MalformedError`."""
        count = len(sections.starts)
        if count >= self._many and sections.lengths.any():
            sample = slices(data, sections.of(slice(self._sample)), pa.binary())
            if 2 * len(sample.unique()) > len(sample):
                readable, found = find_pairs(data, sections)
                if readable.all():
                    with contextlib.suppress(ValueError):
                        return self.of_pairs(data, found, count)
        return self.of_sections(data, sections, read_application)

    def of_sections(self, data: bytearray, sections: Spans, read: Callable[[bytes], dict[Any, Any]]) -> pa.MapArray:
        """A map for each section. Sections with the same bytes are read once. Raises what `read` raises."""
        made = rows.Maps(self._json)
        if not sections.lengths.any():
            if not (shared := read(b"")):
                return rows.no_pairs(len(sections.lengths))
            made.add(shared)
            codes = np.zeros(len(sections.lengths), np.int32)
        else:
            index: dict[bytes, int] = {}
            raws = slices(data, sections, pa.binary()).to_pylist()
            codes = np.fromiter((index.setdefault(raw, len(index)) for raw in raws), np.int32, len(raws))
            for raw in index:
                made.add(read(raw))
        column = made.column()
        return column if len(column) == len(codes) else column.take(pa.array(codes))

    def of_pairs(self, data: bytearray, pairs: Pairs, count: int) -> pa.MapArray:
        """The `count` maps of `pairs`. Raises ValueError if a map has a key twice."""
        if not len(pairs.maps):
            return rows.no_pairs(count)
        keys, counts = texts(data, pairs.keys), np.bincount(pairs.maps, minlength=count)
        if (most := counts.max()) > 1:
            codes = keys.dictionary_encode().indices.to_numpy()
            for apart in range(1, most):
                if ((codes[apart:] == codes[:-apart]) & (pairs.maps[apart:] == pairs.maps[:-apart])).any():
                    raise ValueError("a key twice")
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), keys, self._values(data, pairs.codes, pairs.values))

    def _values(self, data: bytearray, codes: Integers, spans: Spans) -> pa.StringArray:
        """Values as texts: integers and texts many at a time, all others one by one."""
        integer, text = INTEGER[codes], TEXT[codes] & ~BINARY[codes] & (not self._json)
        parts, indices = [], []
        for kind in (integer, text, ~(integer | text)):
            if not len(at := np.flatnonzero(kind)):
                continue
            indices.append(at)
            if kind is integer:
                parts.append(pa.array(integers(data, codes[at], spans.of(at))).cast(pa.string()))
            elif kind is text:
                parts.append(texts(data, spans.of(at)))
            else:
                raws = slices(data, spans.of(at), pa.binary()).to_pylist()
                parts.append(rows.texts(map(_scalar, raws, codes[at].tolist()), self._json))
        return in_order(parts, indices)


def _scalar(raw: bytes, code: int) -> Any:
    """The value of type `code` from its bytes, without its size."""
    if code == 0xA0 or code == 0xB0:
        return rows.Binary(raw)
    if code in TEXTS:
        return raw
    scalar = SCALARS[code]
    assert scalar is not None
    return scalar(raw, 0)[0]
