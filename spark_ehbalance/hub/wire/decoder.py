"""Messages become a record batch: tiers in a sequence, each of which takes the messages that it can read.

All tiers return the same rows. The first ones are the fast path, in which numpy reads many messages at once; the last
one is the slow path, which reads each message alone and takes all that are left.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from spark_ehbalance.hub import rows
from spark_ehbalance.hub.rows import Rows
from spark_ehbalance.hub.wire import arrays
from spark_ehbalance.hub.wire.messages import parse, read_properties
from spark_ehbalance.hub.wire.pairs import find_pairs, find_sections, named
from spark_ehbalance.hub.wire.scan import INTEGER, TEXT, Booleans, Integers, integers
from spark_ehbalance.hub.wire.templates import Fields, Template, learn
from spark_ehbalance.hub.wire.transfers import RawMessages
from spark_ehbalance.hub.wire.values import MALFORMED, MalformedError
from spark_ehbalance.text import logger

_LOG = logger(__name__)

#: Fewer messages than `_FEW` are not read by a template, and fewer than `_MANY` not by `_AnyShape`: a batch costs 0.3
#: ms and 2 ms there, and a message 7 µs on the slow path.
_FEW = 16
_MANY = 256

#: A template is tried on `_SAMPLE` messages first, because it costs 0.2 µs a message even if it fits none; but only
#: where there are at least `_SAMPLE_PAYS` times as many messages.
_SAMPLE = 64
_SAMPLE_PAYS = 8

#: Templates kept. One that does not fit costs about 0.2 µs an event.
_MOST_TEMPLATES = 4

#: The annotations that have a column, and the codes of the values that `_AnyShape` reads for them.
_COLUMN_CODES = {
    rows.SEQUENCE_NUMBER: INTEGER,
    rows.ENQUEUED_TIME: INTEGER,
    rows.OFFSET: TEXT,
    rows.PARTITION_KEY: TEXT,
    rows.PUBLISHER: TEXT,
}

# glibc keeps freed memory for blocks up to the size of the largest block that was ever freed. Without this block it
# returns the arrays of every batch, up to 1 MB each, to the system and allocates them again: a quarter of the cost of
# an event of 100 bytes.
_block = np.empty(8 << 20, np.uint8)
del _block


class Tier(Protocol):
    """One way to read messages."""

    name: str

    def take(self, left: RawMessages) -> tuple[Booleans, Rows] | None:
        """Which of the messages that are left it has read, as a mask, and their rows; None if it has read none."""


class Decoder:
    """Makes record batches of the messages of one partition. For one thread at a time.

    `as_json` is as for `rows.record_batch`. Batches of fewer than `few` messages are not read by templates, and those
    of fewer than `many` messages of unlike shapes not at once.
    """

    def __init__(self, partition: str, as_json: bool, *, few: int = _FEW, many: int = _MANY) -> None:
        self._context = context = _Context(partition, few, many, arrays.MapColumns(as_json, _SAMPLE, many))
        self._templates: list[_KnownTemplate] = []  # the one that fitted last comes first
        slow_path = _SlowPath(partition, as_json)
        self._before: tuple[Tier, ...] = (_SeveralFrames(slow_path),)
        # At most two templates are learned per batch: messages of which no two are alike must not cost much more.
        self._after: tuple[Tier, ...] = (
            _NewTemplate(0, context, self._fitted),
            _NewTemplate(-1, context, self._fitted),
            _AnyShape(context),
            slow_path,
        )

    def record_batch(self, messages: RawMessages) -> Rows:
        """The rows of all `messages`, in their order."""
        left, indices_left, counts = messages, np.arange(len(messages)), Counter[str]()
        batches, indices, unreadable = list[pa.RecordBatch](), list[Integers](), dict[int, str]()
        for tier in (*self._before, *self._templates, *self._after):
            if (read := tier.take(left)) is None:
                continue
            taken, (batch, reasons) = read
            batches.append(batch)
            indices.append(indices_left[taken])
            unreadable |= {int(indices[-1][row]): reason for row, reason in reasons.items()}
            counts[tier.name] += batch.num_rows
            if taken.all():
                break
            left, indices_left = left.of(~taken), indices_left[~taken]
        if len(messages):
            _LOG.debug("partition %s: messages read by tier: %s", self._context.partition, dict(counts))
        return Rows(arrays.in_order(batches, indices), unreadable)

    def _fitted(self, template: _KnownTemplate) -> None:
        others = [each for each in self._templates if each is not template]
        self._templates = [template, *others][:_MOST_TEMPLATES]


class _Context(NamedTuple):
    """What the tiers of the fast path share."""

    partition: str
    few: int
    many: int
    maps: arrays.MapColumns


class _KnownTemplate:
    """Reads the messages that a template fits, and calls `fitted` with itself if there are enough."""

    name = "known template"

    def __init__(self, template: Template, context: _Context, fitted: Callable[[_KnownTemplate], None]) -> None:
        self._template = template
        self._context = context
        self._fitted = fitted
        self._fits_all = False  # it fitted all messages that it was last given: no sample is tried

    def take(self, left: RawMessages) -> tuple[Booleans, Rows] | None:
        if len(left) < self._context.few or not (self._fits_all or self._fits_sample(left)):
            return None
        fitting, fields = self._template.match(left)
        self._fits_all = bool(fitting.all())
        if len(fields.sequence_numbers) < self._context.few:
            return None
        try:
            batch = self._batch(left.data, fields)
        except (MalformedError, pa.ArrowInvalid):
            # The slow path knows what to do with a section that contradicts itself, or with an impossible time.
            return None
        self._fitted(self)
        return fitting, Rows(batch)

    def _fits_sample(self, left: RawMessages) -> bool:
        """Whether the template fits one of a few of the messages; True if there are too few for that to pay."""
        step = len(left) // _SAMPLE
        sample = slice(step // 2, None, step)  # without the first and the last message: templates are learned from them
        return step < _SAMPLE_PAYS or bool(self._template.match(left.of(sample))[0].any())

    def _batch(self, data: bytearray, fields: Fields) -> pa.RecordBatch:
        partition, _, _, maps = self._context
        count = len(fields.sequence_numbers)
        no_texts, times = pa.nulls(count, pa.string()), fields.enqueued_times

        def system(section: bytes) -> dict[Any, Any]:
            return {**read_properties(section), **self._template.other_annotations}

        return rows.from_columns(
            body=arrays.slices(data, fields.bodies, pa.binary()),
            partition=arrays.repeated(partition, count),
            offset=no_texts if fields.offsets is None else arrays.texts(data, fields.offsets),
            sequenceNumber=pa.array(fields.sequence_numbers),
            enqueuedTime=rows.times(pa.nulls(count, pa.int64()) if times is None else pa.array(times, mask=times == 0)),
            publisher=arrays.repeated(rows.optional_text(self._template.publisher), count),
            partitionKey=no_texts if fields.partition_keys is None else arrays.texts(data, fields.partition_keys),
            properties=maps.of_application(data, fields.application),
            systemProperties=maps.of_sections(data, fields.properties, system),
        )


class _NewTemplate:
    """Learns a template from the message at `index`, and reads the messages that it fits."""

    name = "new template"

    def __init__(self, index: int, context: _Context, fitted: Callable[[_KnownTemplate], None]) -> None:
        self._index = index
        self._context = context
        self._fitted = fitted

    def take(self, left: RawMessages) -> tuple[Booleans, Rows] | None:
        template = learn(left[self._index]) if len(left) >= self._context.few else None
        return None if template is None else _KnownTemplate(template, self._context, self._fitted).take(left)


class _AnyShape:
    """Reads messages of which no two need to be alike, if there are many: numpy reads their maps pair by pair."""

    name = "any shape"

    def __init__(self, context: _Context) -> None:
        self._context = context

    def take(self, left: RawMessages) -> tuple[Booleans, Rows] | None:
        if len(left) < self._context.many:
            return None
        # If one of them cannot be read here, the slow path finds out which one it is, and why.
        with contextlib.suppress(MalformedError, *MALFORMED):
            return self._read(left)
        return None

    def _read(self, left: RawMessages) -> tuple[Booleans, Rows] | None:
        """Raises `MalformedError` or one of `MALFORMED` if only the slow path can read a message, or none can."""
        data = left.data
        good, sections = find_sections(left)
        readable, annotations = find_pairs(data, sections.annotations)
        fitting, pair_of = named(data, annotations, len(left), _COLUMN_CODES)
        good &= readable & fitting & (pair_of[rows.SEQUENCE_NUMBER] >= 0)
        if (count := int(np.count_nonzero(good))) < self._context.many:
            return None
        others = np.ones(len(annotations.maps), np.bool_)
        for pairs in pair_of.values():
            others[pairs[pairs >= 0]] = False
        pair_of = {name: pairs[good] for name, pairs in pair_of.items()}

        def integer(pairs: Integers) -> Integers:
            return integers(data, annotations.codes[pairs], annotations.values.of(pairs))

        def texts(name: bytes) -> pa.StringArray:
            return arrays.optional(pair_of[name], lambda pairs: arrays.texts(data, annotations.values.of(pairs)))

        numbered, timed = pair_of[rows.SEQUENCE_NUMBER], pair_of[rows.ENQUEUED_TIME]
        times = integer(np.where(timed < 0, numbered, timed))
        partition, _, _, maps = self._context
        batch = rows.from_columns(
            body=arrays.slices(data, sections.bodies.of(good), pa.binary()),
            partition=arrays.repeated(partition, count),
            offset=texts(rows.OFFSET),
            sequenceNumber=pa.array(integer(numbered)),
            enqueuedTime=rows.times(pa.array(times, mask=(timed < 0) | (times == 0))),
            publisher=texts(rows.PUBLISHER),
            partitionKey=texts(rows.PARTITION_KEY),
            properties=maps.of_application(data, sections.application.of(good)),
            systemProperties=arrays.joined(
                maps.of_sections(data, sections.properties.of(good), read_properties),
                maps.of_pairs(data, annotations.of(others).of_maps(good), count),
            ),
        )
        return good, Rows(batch)


class _SlowPath:
    """Reads each message alone, whatever its encoding."""

    name = "slow path"

    def __init__(self, partition: str, as_json: bool) -> None:
        self._partition = partition
        self._json = as_json

    def take(self, left: RawMessages) -> tuple[Booleans, Rows] | None:
        return np.ones(len(left), np.bool_), self.read(left)

    def read(self, messages: RawMessages) -> Rows:
        unreadable: dict[int, str] = {}

        def events() -> Iterator[rows.Event]:
            for index, message in enumerate(messages):
                try:
                    yield parse(message)
                except rows.UnreadableError as error:
                    unreadable[index] = str(error)
                    yield rows.unreadable(message, error)

        return Rows(rows.record_batch(events(), self._partition, json_properties=self._json), unreadable)


class _SeveralFrames:
    """Leaves messages that came in several frames, and so do not lie in the buffer in one piece, to the slow path."""

    name = "several frames"

    def __init__(self, slow_path: _SlowPath) -> None:
        self._slow_path = slow_path

    def take(self, left: RawMessages) -> tuple[Booleans, Rows] | None:
        several = left.starts < 0
        return (several, self._slow_path.read(left.of(several))) if several.any() else None
