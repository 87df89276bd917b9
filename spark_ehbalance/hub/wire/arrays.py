"""What lies in a buffer as Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_ehbalance.hub import rows
from spark_ehbalance.hub.wire.pairs import Pairs
from spark_ehbalance.hub.wire.scan import BINARY, INTEGER, TEXT, Integers, Spans, integers
from spark_ehbalance.hub.wire.values import SCALARS, TEXTS


def slices(data: bytearray, spans: Spans, kind: pa.DataType) -> pa.Array:
    """A column of bytes or text: of an array in which they alternate with the gaps between them, every other item."""
    count = len(spans.starts)
    offsets = np.zeros(2 * count + 1, np.int32)
    offsets[:-1:2] = spans.starts
    offsets[1::2] = spans.starts + spans.lengths
    alternating = pa.Array.from_buffers(kind, max(0, 2 * count - 1), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return alternating.take(pa.array(np.arange(0, 2 * count, 2)))


def texts(data: bytearray, spans: Spans) -> pa.StringArray:
    """A column of texts; what is no UTF-8 as `rows.optional_text` has it."""
    column = slices(data, spans, pa.string())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:  # some are not UTF-8
        column = pa.array(map(rows.optional_text, column.cast(pa.binary()).to_pylist()), pa.string())
    return column


def optional(at: Integers, column: Callable[[Integers], pa.Array]) -> pa.Array:
    """The column of those that are not negative, with nulls for those that are."""
    missing = at < 0
    if not missing.any():
        return column(at)
    return column(at[~missing]).take(pa.array(np.cumsum(~missing) - 1, mask=missing))


def in_order(parts: list[Any], places: list[Integers]) -> Any:
    """Parts of an array (or record batch) as one, in which their items have these places."""
    if len(parts) == 1:
        return parts[0]
    joined = (pa.concat_arrays if isinstance(parts[0], pa.Array) else pa.concat_batches)(parts)
    return joined.take(pa.array(np.argsort(np.concatenate(places))))


def maps(data: bytearray, pairs: Pairs, count: int, as_json: bool) -> pa.MapArray:
    """A column of so many maps; `as_json` as for `rows.record_batch`. Raises ValueError if one has a key twice."""
    if not len(pairs.maps):
        return rows.no_pairs(count)
    keys, counts = texts(data, pairs.keys), np.bincount(pairs.maps, minlength=count)
    if (most := counts.max()) > 1:
        codes = keys.dictionary_encode().indices.to_numpy()
        for apart in range(1, most):
            if ((codes[apart:] == codes[:-apart]) & (pairs.maps[apart:] == pairs.maps[:-apart])).any():
                raise ValueError("a key twice")
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), keys, _values(data, pairs.codes, pairs.values, as_json))


def joined(first: pa.MapArray, second: pa.MapArray) -> pa.MapArray:
    """Maps with the pairs of both. Raises ValueError if the same key may be in both of them."""
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


def _values(data: bytearray, codes: Integers, spans: Spans, as_json: bool) -> pa.StringArray:
    """Values as texts, whole numbers and texts many at a time."""
    whole, text = INTEGER[codes], TEXT[codes] & ~BINARY[codes] & (not as_json)
    parts, places = [], []
    for which in (whole, text, ~(whole | text)):
        if not len(at := np.flatnonzero(which)):
            continue
        places.append(at)
        if which is whole:
            parts.append(pa.array(integers(data, codes[at], spans.of(at))).cast(pa.string()))
        elif which is text:
            parts.append(texts(data, spans.of(at)))
        else:
            raws = slices(data, spans.of(at), pa.binary()).to_pylist()
            held = map(_held, raws, codes[at].tolist())
            parts.append(rows.texts(held, as_json))
    return in_order(parts, places)


def _held(raw: bytes, code: int) -> Any:
    """The value that begins with `code`, from what comes after it and after its size."""
    if code == 0xA0 or code == 0xB0:
        return rows.Binary(raw)
    if code in TEXTS:
        return raw
    scalar = SCALARS[code]
    assert scalar is not None
    return scalar(raw, 0)[0]
