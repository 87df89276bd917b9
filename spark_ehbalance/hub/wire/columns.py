"""Messages in a buffer as Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from spark_ehbalance.hub import rows
from spark_ehbalance.hub.wire.messages import pairs, parse, properties
from spark_ehbalance.hub.wire.templates import (
    Found,
    Integers,
    Sections,
    Spans,
    Template,
    learn,
    match_sections,
    match_texts,
)
from spark_ehbalance.hub.wire.values import DECODERS, MALFORMED, MalformedError, decode

#: Messages below which a template does not pay: its cost is by the batch.
_FEW = 16

#: Messages on which a template is tried first, as it costs 0.2 µs a message even if it fits none; and how many times
#: as many there must be.
_SAMPLE = 64
_SAMPLE_PAYS = 8

#: Templates kept. One that does not fit costs about 0.2 µs an event.
_MOST_TEMPLATES = 4

# glibc keeps memory for blocks as large as the largest that was freed. Without this one it gives the arrays of every
# batch, of up to 1 MB each, back to the system and takes them anew: a quarter of what an event of 100 bytes costs.
_block = np.empty(8 << 20, np.uint8)
del _block


class Columns:
    """Makes record batches of the messages of one partition; `json_properties` as for `rows.record_batch`."""

    def __init__(self, partition: str, json_properties: bool) -> None:
        self._partition = partition
        self._json = json_properties
        self._templates: list[Template] = []  # the last one that fitted comes first
        self._steady: Template | None = None  # has fitted all messages of the batch before
        self._failure: MalformedError | None = None  # of a message after those that were given out

    def record_batch(self, data: bytearray, starts: list[int], ends: list[int], joined: list[bytes]) -> pa.RecordBatch:
        """The messages that `Transfers` has found in `data`, or those before the first that cannot be read.

        Raises `MalformedError` if that is the first one, or was the one after the batch before.
        """
        if self._failure is not None:
            raise self._failure
        view = memoryview(data)

        def message(at: int) -> bytes:
            return bytes(view[starts[at] : ends[at]]) if starts[at] >= 0 else joined[-1 - starts[at]]

        all_starts, all_ends = np.array(starts, np.int64), np.array(ends, np.int64)
        left = np.flatnonzero(all_starts >= 0)
        batches, places = [], []
        # New ones are learned from two messages, so that a stream in which no two are alike does not cost much.
        candidates: list[Template | int] = [*self._templates, 0, -1]
        for candidate in candidates:
            if len(left) < _FEW:
                break
            template = learn(message(left[candidate])) if isinstance(candidate, int) else candidate
            if template is None:
                continue
            if template is not self._steady and not self._promises(template, data, all_starts[left], all_ends[left]):
                continue
            good, found = template.match(data, all_starts[left], all_ends[left])
            if len(found.numbers) >= _FEW:
                try:
                    batches.append(self._from_spans(data, found, template))
                except (MalformedError, pa.ArrowInvalid):
                    # The general way knows what to make of a section that contradicts itself or an impossible time.
                    continue
                self._templates = [template, *(each for each in self._templates if each is not template)]
                places.append(left[good])
                left = left[~good]
        del self._templates[_MOST_TEMPLATES:]
        self._steady = None if len(left) or len(batches) != 1 else self._templates[0]
        if len(left) >= _FEW:
            good, sections = match_sections(data, all_starts[left], all_ends[left])
            if len(sections.bodies.starts) >= _FEW:
                try:
                    batches.append(self._from_sections(data, sections))
                except (MalformedError, *MALFORMED):
                    pass  # the general way finds out which message is no row, and why
                else:
                    places.append(left[good])
                    left = left[~good]
        others = np.sort(np.concatenate((left, np.flatnonzero(all_starts < 0))))
        if len(others) or not batches:
            at = 0

            def events() -> Iterator[rows.Event]:
                nonlocal at
                for at in others.tolist():
                    yield parse(message(at))

            try:
                batches.append(rows.record_batch(events(), self._partition, json_properties=self._json))
            except (MalformedError, rows.UnfitError) as error:
                if isinstance(error, rows.UnfitError):
                    at = int(others[error.row])
                failure = MalformedError(f"partition {self._partition}: {error}")
                if not at:
                    raise failure from error
                before = self.record_batch(data, starts[:at], ends[:at], joined)
                self._failure = self._failure or failure
                return before
            places.append(others)
        if len(batches) == 1:
            return batches[0]
        order = np.argsort(np.concatenate(places))
        return pa.concat_batches(batches).take(pa.array(order))

    def _promises(self, template: Template, data: bytearray, starts: Integers, ends: Integers) -> bool:
        """Whether `template` fits one of a few of the messages, if there are enough for that to pay."""
        step = len(starts) // _SAMPLE
        sample = slice(step // 2, None, step)  # without the first and last, from which templates are learned
        return step < _SAMPLE_PAYS or bool(template.match(data, starts[sample], ends[sample])[0].any())

    def _from_spans(self, data: bytearray, found: Found, template: Template) -> pa.RecordBatch:
        count = len(found.numbers)
        none, times = pa.nulls(count, pa.string()), found.times

        def own(raw: bytes) -> dict[Any, Any]:
            return _value(raw, pairs) if raw else {}

        def system(raw: bytes) -> dict[Any, Any]:
            return {**_value(raw, properties), **template.other} if raw else template.other

        texts = self._texts_only(data, found.application)
        columns = [
            _slices(data, found.bodies, pa.binary()),
            pa.repeat(pa.scalar(self._partition, pa.string()), count),
            none if found.offsets is None else _texts(data, found.offsets),
            pa.array(found.numbers),
            rows.times(pa.nulls(count, pa.int64()) if times is None else pa.array(times, mask=times == 0)),
            pa.repeat(pa.scalar(rows.optional_text(template.publisher), pa.string()), count),
            none if found.keys is None else _texts(data, found.keys),
            self._maps(data, found.application, own) if texts is None else texts,
            self._maps(data, found.properties, system),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=rows.ARROW_SCHEMA)

    def _from_sections(self, data: bytearray, found: Sections) -> pa.RecordBatch:
        """Of messages whose annotations differ: these are read one by one. Raises `MalformedError` or one of
        `MALFORMED`."""
        decoders = DECODERS
        raws = (_slices(data, spans, pa.binary()).to_pylist() for spans in found[:3])

        def events() -> Iterator[rows.Event]:
            for marks, standard, application in zip(*raws, strict=True):
                system, end = decoders[marks[0]](marks, 1)
                own, own_end = decoders[application[0]](application, 1) if application else ({}, 0)
                if not (type(system) is type(own) is dict and type(system.get(rows.NUMBER)) is int):
                    raise ValueError("no pairs, or none with a number")
                if end != len(marks) or own_end != len(application):
                    raise ValueError("a section's size contradicts its elements")
                yield b"", {**_value(standard, properties), **system} if standard else system, own

        bodies = _slices(data, found.bodies, pa.binary())
        return rows.record_batch(events(), self._partition, json_properties=self._json, bodies=bodies)

    def _texts_only(self, data: bytearray, sections: Spans) -> pa.MapArray | None:
        """The column of maps if all have the same keys and only texts as values, as events of one kind often have."""
        matched = None if self._json or not sections.lengths.all() else match_texts(data, sections)
        if matched is None:
            return None
        first, values = matched
        keys = rows.keys(first)
        count, width = len(sections.starts), len(keys)
        places = np.tile(np.arange(width, dtype=np.int32), count)
        offsets = np.arange(0, count * width + 1, width, dtype=np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), keys.take(pa.array(places)), _texts(data, values))

    def _maps(self, data: bytearray, spans: Spans, read: Callable[[bytes], dict[Any, Any]]) -> pa.MapArray:
        """A column of maps, from sections of which many may be alike: each is read once."""
        made = rows.Maps()
        if not spans.lengths.any():
            if not (shared := read(b"")):
                return rows.no_pairs(len(spans.lengths))
            made.add(shared)
            codes = np.zeros(len(spans.lengths), np.int32)
        else:
            index: dict[bytes, int] = {}
            raws = _slices(data, spans, pa.binary()).to_pylist()
            codes = np.fromiter((index.setdefault(raw, len(index)) for raw in raws), np.int32, len(raws))
            for raw in index:
                made.add(read(raw))
        column = made.column(self._json)
        return column if len(column) == len(codes) else column.take(pa.array(codes))


def _slices(data: bytearray, spans: Spans, kind: pa.DataType) -> pa.Array:
    """A column of bytes or text: of an array in which they alternate with the gaps between them, every other item."""
    count = len(spans.starts)
    offsets = np.empty(2 * count, np.int32)
    offsets[::2] = spans.starts
    offsets[1::2] = spans.starts + spans.lengths
    alternating = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return alternating.take(pa.array(np.arange(0, 2 * count, 2)))


def _texts(data: bytearray, spans: Spans) -> pa.Array:
    column = _slices(data, spans, pa.string())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:  # some are not UTF-8
        column = pa.array(map(rows.optional_text, column.cast(pa.binary()).to_pylist()), pa.string())
    return column


def _value(section: bytes, meaning: Callable[[Any], dict[Any, Any]]) -> dict[Any, Any]:
    """Raises `MalformedError` for a section that does not end where its size says, too."""
    try:
        value, end = decode(section, 0)
        if end != len(section):
            raise ValueError("a section's size contradicts its elements")
        return meaning(value)
    except MALFORMED as error:
        raise MalformedError(str(error)) from error
