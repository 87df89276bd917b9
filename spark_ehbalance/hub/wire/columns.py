"""Messages in a buffer as Arrow columns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_ehbalance.hub import rows
from spark_ehbalance.hub.wire import arrays
from spark_ehbalance.hub.wire.messages import pairs, parse, properties
from spark_ehbalance.hub.wire.pairs import find_pairs, find_sections, named
from spark_ehbalance.hub.wire.scan import INTEGER, TEXT, Booleans, Integers, Spans, integers
from spark_ehbalance.hub.wire.templates import Found, Template, learn
from spark_ehbalance.hub.wire.values import MALFORMED, MalformedError, decode

#: Messages below which a template does not pay, and going through all maps at once: their cost is by the batch, about
#: 0.3 ms and 2 ms, where the general way takes 7 µs a message.
_FEW = 16
_MANY = 256

#: The annotations that have a column, and what their values may begin with to be read all at once.
_COLUMN_KINDS = {rows.NUMBER: INTEGER, rows.TIME: INTEGER, rows.OFFSET: TEXT, rows.KEY: TEXT, rows.PUBLISHER: TEXT}

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


class Made(NamedTuple):
    """Rows, and why some of them, by their place, are only what is left of an event that cannot be read."""

    batch: pa.RecordBatch
    unreadable: dict[int, str]


class Columns:
    """Makes record batches of the messages of one partition; `json_properties` as for `rows.record_batch`."""

    def __init__(self, partition: str, json_properties: bool) -> None:
        self._partition = partition
        self._json = json_properties
        self._templates: list[Template] = []  # the last one that fitted comes first
        self._steady: Template | None = None  # has fitted all messages of the batch before

    def record_batch(self, data: bytearray, starts: Sequence[int], ends: Sequence[int], joined: list[bytes]) -> Made:
        """The messages that `Transfers` has found in `data`."""
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
        if len(left) >= _MANY:
            # Which message is no row, and why, the general way finds out.
            with contextlib.suppress(MalformedError, *MALFORMED):
                good, batch = self._of_any_shape(data, all_starts[left], all_ends[left])
                if batch is not None:
                    batches.append(batch)
                    places.append(left[good])
                    left = left[~good]
        others = np.sort(np.concatenate((left, np.flatnonzero(all_starts < 0))))
        unreadable: dict[int, str] = {}
        if len(others) or not batches:

            def events() -> Iterator[rows.Event]:
                for at in others.tolist():
                    try:
                        yield parse(message(at))
                    except rows.UnreadableError as error:
                        unreadable[at] = str(error)
                        yield rows.unreadable(message(at), error)

            batches.append(rows.record_batch(events(), self._partition, json_properties=self._json))
            places.append(others)
        return Made(arrays.in_order(batches, places), unreadable)

    def _promises(self, template: Template, data: bytearray, starts: Integers, ends: Integers) -> bool:
        """Whether `template` fits one of a few of the messages, if there are enough for that to pay."""
        step = len(starts) // _SAMPLE
        sample = slice(step // 2, None, step)  # without the first and last, from which templates are learned
        return step < _SAMPLE_PAYS or bool(template.match(data, starts[sample], ends[sample])[0].any())

    def _from_spans(self, data: bytearray, found: Found, template: Template) -> pa.RecordBatch:
        count = len(found.numbers)
        none, times = pa.nulls(count, pa.string()), found.times

        def system(raw: bytes) -> dict[Any, Any]:
            return {**_standard(raw), **template.other}

        columns = [
            arrays.slices(data, found.bodies, pa.binary()),
            _repeated(self._partition, count),
            none if found.offsets is None else arrays.texts(data, found.offsets),
            pa.array(found.numbers),
            rows.times(pa.nulls(count, pa.int64()) if times is None else pa.array(times, mask=times == 0)),
            _repeated(rows.optional_text(template.publisher), count),
            none if found.keys is None else arrays.texts(data, found.keys),
            self._properties(data, found.application),
            self._maps(data, found.properties, system),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=rows.ARROW_SCHEMA)

    def _of_any_shape(
        self, data: bytearray, starts: Integers, ends: Integers
    ) -> tuple[Booleans, pa.RecordBatch | None]:
        """Which of the messages can be read all at once, and those, if they are many.

        Raises `MalformedError` or one of `MALFORMED` if one of them has to be read the general way, or cannot be.
        """
        good, sections = find_sections(data, starts, ends)
        readable, annotations = find_pairs(data, sections.annotations)
        fitting, at = named(data, annotations, len(starts), _COLUMN_KINDS)
        good &= readable & fitting & (at[rows.NUMBER] >= 0)
        if (count := int(np.count_nonzero(good))) < _MANY:
            return good, None
        others = np.ones(len(annotations.maps), np.bool_)
        for each in at.values():
            others[each[each >= 0]] = False
        number, time, offset, key, publisher = (at[name][good] for name in _COLUMN_KINDS)

        def integer(which: Integers) -> Integers:
            return integers(data, annotations.codes[which], annotations.values.of(which))

        def texts(which: Integers) -> pa.StringArray:
            return arrays.texts(data, annotations.values.of(which))

        times = integer(np.where(time < 0, number, time))
        columns = [
            arrays.slices(data, sections.bodies.of(good), pa.binary()),
            _repeated(self._partition, count),
            arrays.optional(offset, texts),
            pa.array(integer(number)),
            rows.times(pa.array(times, mask=(time < 0) | (times == 0))),
            arrays.optional(publisher, texts),
            arrays.optional(key, texts),
            self._properties(data, sections.application.of(good)),
            arrays.joined(
                self._maps(data, sections.properties.of(good), _standard),
                arrays.maps(data, annotations.of(others).of_maps(good), count, self._json),
            ),
        ]
        return good, pa.RecordBatch.from_arrays(columns, schema=rows.ARROW_SCHEMA)

    def _properties(self, data: bytearray, sections: Spans) -> pa.MapArray:
        """The column of the application's properties."""
        count = len(sections.starts)
        if count >= _MANY and sections.lengths.any():
            sample = arrays.slices(data, sections.of(slice(_SAMPLE)), pa.binary())
            if 2 * len(sample.unique()) > len(sample):
                good, found = find_pairs(data, sections)
                if good.all():
                    with contextlib.suppress(ValueError):
                        return arrays.maps(data, found, count, self._json)
        return self._maps(data, sections, _own)

    def _maps(self, data: bytearray, spans: Spans, read: Callable[[bytes], dict[Any, Any]]) -> pa.MapArray:
        """A column of maps, from sections of which many may be alike: each is read once."""
        made = rows.Maps(self._json)
        if not spans.lengths.any():
            if not (shared := read(b"")):
                return rows.no_pairs(len(spans.lengths))
            made.add(shared)
            codes = np.zeros(len(spans.lengths), np.int32)
        else:
            index: dict[bytes, int] = {}
            raws = arrays.slices(data, spans, pa.binary()).to_pylist()
            codes = np.fromiter((index.setdefault(raw, len(index)) for raw in raws), np.int32, len(raws))
            for raw in index:
                made.add(read(raw))
        column = made.column()
        return column if len(column) == len(codes) else column.take(pa.array(codes))


def _repeated(text: str | None, count: int) -> pa.StringArray:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _standard(section: bytes) -> dict[Any, Any]:
    """The message properties; none where there is no section."""
    return _value(section, properties) if section else {}


def _own(section: bytes) -> dict[Any, Any]:
    """The application's properties; none where there is no section."""
    return _value(section, pairs) if section else {}


def _value(section: bytes, meaning: Callable[[Any], dict[Any, Any]]) -> dict[Any, Any]:
    """Raises `MalformedError` for a section that does not end where its size says, too."""
    try:
        value, end = decode(section, 0)
        if end != len(section):
            raise ValueError("a section's size contradicts its elements")
        return meaning(value)
    except MALFORMED as error:
        raise MalformedError(str(error)) from error
