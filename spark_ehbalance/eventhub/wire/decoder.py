"""Decodes messages to record batches, using a sequence of tiers, each of which reads the messages that it supports.

The first tiers, the fast path, read many messages at once with numpy; the slow path reads the remaining messages one at
a time. All tiers return the same rows. A message that only the slow path supports does not slow down the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_ehbalance.eventhub import arrays, rows
from spark_ehbalance.eventhub.rows import Rows
from spark_ehbalance.eventhub.wire import scan
from spark_ehbalance.eventhub.wire.messages import parse, read_application, read_properties
from spark_ehbalance.eventhub.wire.scan import BINARY, INTEGER, TEXT, Booleans, Integers, Pairs, Spans, Template
from spark_ehbalance.eventhub.wire.transfers import RawMessages
from spark_ehbalance.eventhub.wire.values import SCALARS, TEXTS, MalformedError
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Minimum number of messages for a template, and for "any shape". A batch costs 0.3 ms with a template and 2 ms with
#: "any shape", and a message costs 7 µs on the slow path.
_FEW = 16
_MANY = 256

#: If there are at least `_SAMPLE` * `_SAMPLE_PAYS` messages, a template is tried on `_SAMPLE` of them first, because it
#: costs 0.2 µs per message even without a match. Maps are read pair by pair only if most of `_SAMPLE` maps differ.
_SAMPLE = 64
_SAMPLE_PAYS = 8

#: Maximum number of cached templates. A template that does not match costs about 0.2 µs per event.
_MAX_TEMPLATES = 4

#: The annotations that "any shape" reads, and the type codes that it supports for their values.
_CODES = {
    rows.SEQUENCE_NUMBER: INTEGER,
    rows.ENQUEUED_TIME: INTEGER,
    rows.OFFSET: TEXT,
    rows.PARTITION_KEY: TEXT,
    rows.PUBLISHER: TEXT,
    rows.EPOCH: INTEGER,
}

# Freed below, so that glibc keeps freed blocks of up to this size. Otherwise, it would return the arrays of every batch
# (up to 1 MB each) to the system, which adds a quarter to the cost of an event of 100 bytes.
_block = np.empty(8 << 20, np.uint8)
del _block

#: Up to this number of slices of the tiers' batches, the slices are concatenated to put the rows in order, which needs
#: only one copy.
_MAX_SLICES = 64


class _Read(NamedTuple):
    """The rows that a tier read. Rows that are not `valid` are dropped, because only the slow path can decode their
    messages."""

    matched: Booleans  # mask of the messages with a row
    valid: Booleans  # mask of the rows
    batch: pa.RecordBatch


#: A tier returns None if it can read none of the messages.
_Tier = Callable[[RawMessages], _Read | None]


class Decoder:
    """Decodes the messages of one partition to record batches. For one thread at a time.

    `as_json` and `schema` have the same meaning as `json_properties` and `schema` of `rows.record_batch`. The set of
    unreadable events does not depend on `schema`. `few` and `many` are the minimum numbers of messages for templates
    and for "any shape".
    """

    def __init__(
        self,
        partition: str,
        as_json: bool,
        schema: pa.Schema = rows.ARROW_SCHEMA,
        *,
        few: int = _FEW,
        many: int = _MANY,
    ) -> None:
        self._partition = partition
        self._json = as_json
        self._schema = schema
        self._columns = frozenset(schema.names)
        self._few, self._many = few, many
        self._templates: list[Template] = []  # the last one that matched comes first

    def record_batch(self, messages: RawMessages) -> Rows:
        """The rows of all `messages`, in their order."""
        alone = messages.starts < 0  # messages that span several frames are not contiguous in the buffer
        left, counts = np.flatnonzero(~alone), Counter[str]()
        batches, indices = list[pa.RecordBatch](), list[Integers]()
        for name, tier in self._tiers():
            if not len(left):
                break
            if (read := tier(messages.select(left))) is None:
                continue
            indices.append(np.where(read.valid, left[read.matched], -1))
            batches.append(read.batch)
            counts[name] += int(np.count_nonzero(read.valid))
            alone[left[read.matched][~read.valid]] = True
            left = left[~read.matched]
        alone[left] = True
        unreadable = dict[int, str]()
        if alone.any() or not batches:
            indices.append(np.flatnonzero(alone))
            batch, reasons = self._one_by_one(messages.select(indices[-1]))
            batches.append(batch)
            counts["slow path"] = batch.num_rows
            unreadable = {int(indices[-1][row]): reason for row, reason in reasons.items()}
        if len(messages):
            _LOG.debug("Messages decoded: partition=%s by_tier=%s", self._partition, dict(counts))
        return Rows(_in_order(batches, indices), unreadable)

    def _tiers(self) -> list[tuple[str, _Tier]]:
        return [
            *(("known template", partial(self._by_template, template)) for template in self._templates),
            # At most two new templates per batch, to limit the cost if messages differ in shape.
            ("new template", partial(self._by_new_template, 0)),
            ("new template", partial(self._by_new_template, -1)),
            ("any shape", self._by_any_shape),
        ]

    def _one_by_one(self, messages: RawMessages) -> Rows:
        unreadable: dict[int, str] = {}

        def events() -> Iterator[rows.Event]:
            for index, message in enumerate(messages):
                try:
                    yield parse(message)
                except rows.UnreadableError as error:
                    unreadable[index] = str(error)
                    yield rows.unreadable(message, error)

        batch = rows.record_batch(events(), self._partition, json_properties=self._json, schema=self._schema)
        return Rows(batch, unreadable)

    # --- messages of one shape -------------------------------------------------------------------------------------

    def _by_new_template(self, index: int, left: RawMessages) -> _Read | None:
        template = scan.learn(left[index]) if len(left) >= self._few else None
        return None if template is None else self._by_template(template, left)

    def _by_template(self, template: Template, left: RawMessages) -> _Read | None:
        if len(left) < self._few or not (template.fits_all or _fits_sample(template, left)):
            return None
        matched, values, sections = template.match(left)
        data, count = left.data, int(np.count_nonzero(matched))
        if count < self._few:
            return None
        times = values[rows.ENQUEUED_TIME] if rows.ENQUEUED_TIME in values else np.zeros(count, np.int64)

        def texts(name: bytes) -> pa.StringArray:
            return _texts(data, values[name]) if name in values else pa.nulls(count, pa.string())

        def system(section: bytes) -> dict[Any, Any]:
            return {**read_properties(section), **template.other_annotations}

        properties, valid = self._application_maps(data, sections.application)
        system_properties, readable = self._maps("systemProperties", data, sections.properties, system)
        valid &= readable & _fit_column(times)
        batch = rows.from_columns(
            self._schema,
            body=lambda: _slices(data, sections.bodies, pa.binary()),
            partition=lambda: arrays.repeated(self._partition, count),
            offset=lambda: texts(rows.OFFSET),
            sequenceNumber=lambda: arrays.from_numpy(values[rows.SEQUENCE_NUMBER]),
            enqueuedTime=lambda: _times(times),
            publisher=lambda: arrays.repeated(rows.optional_text(template.publisher), count),
            partitionKey=lambda: texts(rows.PARTITION_KEY),
            properties=lambda: properties,
            systemProperties=lambda: system_properties,
        )
        self._templates = [template, *(other for other in self._templates if other is not template)][:_MAX_TEMPLATES]
        return _Read(matched, valid, batch)

    # --- messages of any shape -------------------------------------------------------------------------------------

    def _by_any_shape(self, left: RawMessages) -> _Read | None:
        """Read the maps of at least `many` messages pair by pair with numpy."""
        if len(left) < self._many:
            return None
        data = left.data
        good, annotations, sections = scan.find_sections(left)
        readable, pairs = scan.find_pairs(data, annotations)
        unique, pair_of = scan.find_named(data, pairs, len(left), _CODES)
        good &= readable & unique & (pair_of[rows.SEQUENCE_NUMBER] >= 0)
        if (count := int(np.count_nonzero(good))) < self._many:
            return None
        others, epochs = np.ones(len(pairs.maps), np.bool_), pair_of.pop(rows.EPOCH)
        for indices in pair_of.values():
            others[indices[indices >= 0]] = False
        epochs = epochs[epochs >= 0]
        others[epochs] = scan.integers(data, pairs.codes[epochs], pairs.values.select(epochs)) != rows.NO_EPOCH
        pair_of, sections = {name: indices[good] for name, indices in pair_of.items()}, sections.select(good)

        def integers(indices: Integers) -> Integers:
            return scan.integers(data, pairs.codes[indices], pairs.values.select(indices))

        def texts(name: bytes) -> pa.StringArray:
            """An annotation as a column of strings; null where it is missing."""
            missing = pair_of[name] < 0
            found = _texts(data, pairs.values.select(pair_of[name][~missing]))
            return found.take(arrays.from_numpy(np.cumsum(~missing) - 1, ~missing)) if missing.any() else found

        numbered, timed = pair_of[rows.SEQUENCE_NUMBER], pair_of[rows.ENQUEUED_TIME]
        times = np.where(timed < 0, 0, integers(np.where(timed < 0, numbered, timed)))
        properties, valid = self._application_maps(data, sections.application)
        standard, readable = self._maps("systemProperties", data, sections.properties, read_properties)
        valid &= readable & _fit_column(times)
        system_properties = None
        if standard is not None:
            own, single = self._maps_of_pairs(data, pairs.select(others, good), count)
            system_properties, disjoint = _joined(standard, own)
            valid &= single & disjoint
        batch = rows.from_columns(
            self._schema,
            body=lambda: _slices(data, sections.bodies, pa.binary()),
            partition=lambda: arrays.repeated(self._partition, count),
            offset=lambda: texts(rows.OFFSET),
            sequenceNumber=lambda: arrays.from_numpy(integers(numbered)),
            enqueuedTime=lambda: _times(times),
            publisher=lambda: texts(rows.PUBLISHER),
            partitionKey=lambda: texts(rows.PARTITION_KEY),
            properties=lambda: properties,
            systemProperties=lambda: system_properties,
        )
        return _Read(good, valid, batch)

    # --- columns of maps -------------------------------------------------------------------------------------------

    def _application_maps(self, data: bytearray, sections: Spans) -> tuple[pa.MapArray | None, Booleans]:
        """The result of `_maps` for the application properties. Many unlike sections are read pair by pair."""
        count = len(sections.starts)
        if count >= self._many and sections.lengths.any():
            sample = _slices(data, sections.select(slice(_SAMPLE)), pa.binary())
            if 2 * len(sample.unique()) > len(sample):
                readable, found = scan.find_pairs(data, sections)
                if 2 * np.count_nonzero(readable) > count:
                    if "properties" not in self._columns:
                        return None, readable
                    maps, single = self._maps_of_pairs(data, found, count)
                    return maps, readable & single
        return self._maps("properties", data, sections, read_application)

    def _maps(
        self, column: str, data: bytearray, sections: Spans, read: Callable[[bytes], dict[Any, Any]]
    ) -> tuple[pa.MapArray | None, Booleans]:
        """A map per section, or None if `column` is not selected; and the mask of readable sections, even if the column
        is not selected. Sections with equal bytes are read only once."""
        is_selected, builder, count = column in self._columns, rows.Maps(self._json), len(sections.lengths)
        readable = [True]
        if not sections.lengths.any():
            if not (shared := read(b"")):
                return rows.empty_maps(count) if is_selected else None, np.ones(count, np.bool_)
            builder.add(shared)
            codes = np.zeros(count, np.int32)
        else:
            # not Arrow's `dictionary_encode`: its hashes are unsalted, so a sender could choose colliding sections
            distinct: dict[bytes, int] = {}
            salted = map(rows.SALT.__add__, _slices(data, sections, pa.binary()).to_pylist())
            codes = np.array([distinct.setdefault(raw, len(distinct)) for raw in salted], np.int32)
            readable *= len(distinct)
            for raw, code in distinct.items():
                try:
                    builder.add(read(raw[len(rows.SALT) :]))
                except MalformedError:
                    builder.add({})
                    readable[code] = False
        valid = np.array(readable)[codes]
        if not is_selected:
            return None, valid
        maps = builder.column()
        return maps if len(maps) == count else maps.take(arrays.from_numpy(codes)), valid

    def _maps_of_pairs(self, data: bytearray, pairs: Pairs, count: int) -> tuple[pa.MapArray, Booleans]:
        """The `count` maps that consist of `pairs`, and the mask of the maps without a repeated key."""
        single = np.ones(count, np.bool_)
        if not len(pairs.maps):
            return rows.empty_maps(count), single
        keys, counts = _texts(data, pairs.keys), np.bincount(pairs.maps, minlength=count)
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        # not with Arrow's hashes, because a sender could choose colliding keys
        if len(several := np.flatnonzero(counts > 1)):
            names = keys.take(arrays.from_numpy(np.flatnonzero(counts[pairs.maps] > 1))).to_pylist()
            end = 0
            for index, size in zip(several.tolist(), counts[several].tolist(), strict=True):
                begin, end = end, end + size
                single[index] = len(set(names[begin:end])) == size
        values = self._values(data, pairs.codes, pairs.values)
        return pa.MapArray.from_arrays(arrays.from_numpy(offsets), keys, values), single

    def _values(self, data: bytearray, codes: Integers, spans: Spans) -> pa.StringArray:
        """Values as texts. Integers and texts are converted many at a time, other types one by one."""
        integer, text = INTEGER[codes], TEXT[codes] & ~BINARY[codes] & (not self._json)
        parts, indices = [], []
        for kind in (integer, text, ~(integer | text)):
            if not len(at := np.flatnonzero(kind)):
                continue
            indices.append(at)
            if kind is integer:
                parts.append(arrays.from_numpy(scan.integers(data, codes[at], spans.select(at))).cast(pa.string()))
            elif kind is text:
                parts.append(_texts(data, spans.select(at)))
            else:
                raws = _slices(data, spans.select(at), pa.binary()).to_pylist()
                parts.append(rows.texts(map(_scalar, raws, codes[at].tolist()), self._json))
        if len(parts) == 1:
            return parts[0]
        return pa.concat_arrays(parts).take(arrays.from_numpy(np.argsort(np.concatenate(indices))))


def _fits_sample(template: Template, left: RawMessages) -> bool:
    """Whether the template matches any message of a sample; True if there are too few messages for a sample."""
    step = len(left) // _SAMPLE
    sample = slice(step // 2, None, step)  # leaves out the first and the last message, from which templates are learned
    return step < _SAMPLE_PAYS or bool(template.match(left.select(sample))[0].any())


# --- Arrow arrays from parts of a buffer -----------------------------------------------------------------------------


def _slices(data: bytearray, spans: Spans, kind: pa.DataType) -> pa.Array:
    """A column of bytes or text, created with a single copy: every other item of an array whose remaining items are the
    gaps."""
    count = len(spans.starts)
    offsets = np.zeros(2 * count + 1, np.int32)
    offsets[:-1:2] = spans.starts
    offsets[1::2] = spans.starts + spans.lengths
    alternating = pa.Array.from_buffers(kind, max(0, 2 * count - 1), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return alternating.take(arrays.from_numpy(np.arange(0, 2 * count, 2)))


def _texts(data: bytearray, spans: Spans) -> pa.StringArray:
    """A column of texts. Bytes that are not UTF-8 are converted as in `rows.optional_text`."""
    return _as_utf8(_slices(data, spans, pa.string()))


def _as_utf8(column: pa.StringArray) -> pa.StringArray:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:  # only the part with bytes that are not UTF-8 is converted one by one
        if len(column) <= _SAMPLE:
            return pa.array(map(rows.optional_text, column.cast(pa.binary()).to_pylist()), pa.string())
        parts = (column.slice(at, _SAMPLE) for at in range(0, len(column), _SAMPLE))
        return pa.concat_arrays(map(_as_utf8, parts))
    return column


def _fit_column(milliseconds: Integers) -> Booleans:
    return (milliseconds <= rows.MAX_TIME) & (milliseconds >= -rows.MAX_TIME)


def _times(milliseconds: Integers) -> pa.Array:
    """The column of times, with null for 0."""
    return arrays.from_numpy(milliseconds * 1000, milliseconds != 0).view(rows.TIME)


def _in_order(batches: list[pa.RecordBatch], indices: list[Integers]) -> pa.RecordBatch:
    """The rows of `batches` ordered by `indices`, without rows whose index is negative."""
    at = np.concatenate(indices)
    order = np.argsort(at, kind="stable")[np.count_nonzero(at < 0) :]
    if len(batches) == 1 and len(order) == len(at):
        return batches[0]
    starts = np.flatnonzero(np.diff(order, prepend=-2) != 1)
    if len(starts) > _MAX_SLICES:
        return pa.concat_batches(batches).take(arrays.from_numpy(order))
    table = pa.Table.from_batches(batches)
    lengths = np.diff(starts, append=len(order))
    slices = [table.slice(int(order[start]), int(length)) for start, length in zip(starts, lengths, strict=True)]
    return pa.concat_tables(slices).combine_chunks().to_batches()[0]


def _joined(first: pa.MapArray, second: pa.MapArray) -> tuple[pa.MapArray, Booleans]:
    """Maps with the pairs of both columns, and the mask of the maps whose two parts have no key in common."""
    import pyarrow.compute as pc  # a planner, which also imports this module, would spend a tenth of its start on it

    disjoint = np.ones(len(first), np.bool_)
    if not len(first.keys) or not len(second.keys):
        return first if len(first.keys) else second, disjoint
    offsets = [arrays.to_numpy(column.offsets) for column in (first, second)]
    maps = [np.repeat(np.arange(len(first)), np.diff(ends)) for ends in offsets]
    names = first.keys.unique()
    known = [pc.index_in(column.keys, names).fill_null(-1).to_numpy() for column in (first, second)]
    shared = known[1] >= 0
    if shared.any():
        pairs = [len(names) * index + code for index, code in zip(maps, known, strict=True)]
        disjoint[maps[1][shared & np.isin(pairs[1], pairs[0])]] = False
    order = arrays.from_numpy(np.argsort(np.concatenate(maps), kind="stable"))
    keys, items = (
        pa.concat_arrays(columns).take(order) for columns in ((first.keys, second.keys), (first.items, second.items))
    )
    return pa.MapArray.from_arrays(arrays.from_numpy(offsets[0] + offsets[1]), keys, items), disjoint


def _scalar(raw: bytes, code: int) -> Any:
    """The value of type `code` from its bytes, which do not include the size."""
    if code == 0xA0 or code == 0xB0:
        return rows.Binary(raw)
    if code in TEXTS:
        return raw
    scalar = SCALARS[code]
    assert scalar is not None
    return scalar(raw, 0)[0]
