"""Which columns of a frame make an event, and the events that Arrow batches of them make. Pure."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from spark_ehbalance.errors import OptionError, UnsendableEventError
from spark_ehbalance.eventhub.rows import TEXT_SALT
from spark_ehbalance.eventhub.sending.write_options import FAIL
from spark_ehbalance.eventhub.wire.encoder import Encoder, Keyed, small_pair, system
from spark_ehbalance.settings.secrets import redacted
from spark_ehbalance.settings.suggestions import did_you_mean

#: The most characters of a partition key, `ClientConstants.MAX_PARTITION_KEY_LENGTH` of Azure's clients.
_LONGEST_KEY = 128

#: Binary as the source writes it, which puts a space after each comma of a list; and its numbers.
_BINARY = re.compile(r"\[(?:-?(?:0|[1-9]\d{0,2})(?:,(?!\])|(?=\])))*\]", re.ASCII)
_BYTES = frozenset(range(-128, 128))

#: What a long and an unsigned long can hold, and the most characters of it: Python takes no number of 4,300 digits.
_LONG = range(-(1 << 63), 1 << 64)
_LONGEST_NUMBER = 20


def _is(*kinds: type[DataType]) -> Callable[[DataType], bool]:
    return lambda given: isinstance(given, (*kinds, NullType))


def _is_properties(given: DataType) -> bool:
    values = (StringType, BinaryType, BooleanType, IntegralType, FloatType, DoubleType, NullType)
    return isinstance(given, MapType) and isinstance(given.keyType, StringType) and isinstance(given.valueType, values)


def _is_texts(given: DataType) -> bool:
    return _is_properties(given) and isinstance(getattr(given, "valueType", None), StringType)


def _is_headers(given: DataType) -> bool:
    if not isinstance(given, ArrayType) or not isinstance(given.elementType, StructType):
        return False
    kinds = [each.dataType for each in given.elementType]
    return [each.name for each in given.elementType] == ["key", "value"] and (
        isinstance(kinds[0], StringType) and isinstance(kinds[1], BinaryType)
    )


class _Role(NamedTuple):
    """What a column is for, its types in words, and whether a type is one of them."""

    name: str
    types: str
    takes: Callable[[DataType], bool]


_BODY = _Role("body", "string or binary", _is(StringType, BinaryType))
_PARTITION = _Role("partition", "string or a whole number", _is(StringType, IntegralType))

#: Column → role, for frames as this source reads them, and as Spark's Kafka sink takes them.
_COLUMNS = {
    "body": _BODY,
    "partitionKey": _Role("key", "string", _is(StringType)),
    "partitionId": _PARTITION,
    "properties": _Role("properties", "a map of strings to strings, binary, booleans or numbers", _is_properties),
    "systemProperties": _Role("system", "a map of strings to strings", _is_texts),
}
_KAFKA_COLUMNS = {
    "value": _BODY,
    "key": _Role("key", "string or binary", _is(StringType, BinaryType)),
    "partition": _PARTITION,
    "headers": _Role("headers", "array<struct<key:string,value:binary>>", _is_headers),
    "topic": _Role("topic", "string", _is(StringType)),
}


class Columns(NamedTuple):
    """The places in a frame of what makes an event; None where it has none. `system`: properties of the message, and
    annotations; `headers`: properties as Kafka's sink has them; `topic`: the hub, which is an option here; `json`:
    whether values of properties are JSON."""

    body: int
    key: int | None = None
    partition: int | None = None
    properties: int | None = None
    system: int | None = None
    headers: int | None = None
    topic: int | None = None
    json: bool = False

    @classmethod
    def from_schema(cls, schema: StructType, *, kafka: bool = False, json: bool = False) -> Columns:
        """Those of a frame with this schema. Raises `OptionError` for a missing, wrong or unknown column."""
        roles = _KAFKA_COLUMNS if kafka else _COLUMNS
        names = {name.lower(): name for name in roles}
        found: dict[str, int] = {}
        for place, each in enumerate(schema):
            name = names.get(each.name.lower())
            if name is None:
                raise OptionError(_unknown(each, roles, kafka=kafka))
            role = roles[name]
            if role.name in found:
                raise OptionError(f"the frame has two columns {name}: select one of them")
            if not role.takes(each.dataType):
                given = each.dataType.simpleString()
                raise OptionError(f"column {name} is of the type {given}: allowed is {role.types}")
            found[role.name] = place
        if "body" not in found:
            name = next(iter(roles))
            raise OptionError(f"the frame has no column {name}, which is needed: allowed are {', '.join(roles)}")
        if json and "properties" not in found:
            raise OptionError("jsonProperties=true needs a column properties")
        if "system" in found and not json:
            raise OptionError("a column systemProperties needs jsonProperties=true, here and where it was read")
        if json and not _is_texts(schema[found["properties"]].dataType):
            raise OptionError("jsonProperties=true needs a column properties whose values are strings of JSON")
        return cls(**found, json=json)


def _unknown(column: StructField, roles: Iterable[str], *, kafka: bool) -> str:
    name = redacted(column.name)
    allowed = f"allowed are {', '.join(roles)}"
    other = next((each for each in (_COLUMNS if kafka else _KAFKA_COLUMNS) if each.lower() == column.name.lower()), "")
    if kafka and other == "body":
        return f"the frame has a column body, and kafkaColumns=true: {allowed}"
    if not kafka and other in ("value", "key", "headers"):
        return f"the frame has a column {other}, as for Kafka's sink: set kafkaColumns=true, or rename it; {allowed}"
    if not kafka and other == "partition":
        return f"the frame has a column partition: name it partitionId, or leave it out; {allowed}"
    return f"the frame has a column {name}, of which nothing can be made: {allowed}{did_you_mean(column.name, roles)}"


def check_topic(batch: pa.RecordBatch, columns: Columns, hub: str) -> None:
    """Raise `UnsendableEventError` if a row of `batch` names another hub than that of the option."""
    topics = [] if columns.topic is None else batch.column(columns.topic).cast(pa.binary()).unique().to_pylist()
    for each in (topic.decode(errors="replace") for topic in topics if topic is not None):
        if each.lower() != hub.lower():
            raise UnsendableEventError(
                f"a row has the topic {redacted(each)}, and eventHubName is {hub}: write each topic by itself, without "
                "the column"
            )


#: Partition → salted key → events. The partition is None where the hub chooses it, by the key if there is one.
Events = dict[str | None, dict[str, Keyed]]


class _Event(NamedTuple):
    partition: str | None
    key: str | None
    envelope: bytes
    head: bytes
    body: bytes


class RowEncoder:
    """Makes events of the rows of a task. `partitions` gives the ids of the hub's partitions, in the order of their
    numbers, and is called if a row names one; `most` gives the most bytes of an event, by the partition of the first
    one. `policy` is the option `onUnsendable`: `skipped` rows are counted, and `problem` is why the first one was."""

    def __init__(
        self,
        columns: Columns,
        partitions: Callable[[], Sequence[str]],
        most: Callable[[str | None], int],
        policy: str = FAIL,
    ) -> None:
        self._columns, self._partitions, self._most, self._policy = columns, partitions, most, policy
        self._ids: Sequence[str] = ()
        self._count = self.skipped = 0
        self.problem = ""

    def add(self, batch: pa.RecordBatch, events: Events) -> None:
        """Add those of `batch`. Raises `UnsendableEventError`, which names the row by its number in the task."""
        for made in self._made(batch):
            self._count += 1
            if isinstance(made, ValueError):
                problem = f"row {self._count} of a task cannot be sent: {made}"
                if self._policy == FAIL:
                    raise UnsendableEventError(
                        f"{problem}. Nothing was sent of it and of the rows around it. Set onUnsendable=skip to leave "
                        "such rows out, with a warning that counts them"
                    )
                self.skipped += 1
                self.problem = self.problem or problem
                continue
            of_partition = events.setdefault(made.partition, {})
            salted = TEXT_SALT + (made.key or "")
            if salted not in of_partition:
                of_partition[salted] = Keyed(made.envelope, [])
            of_partition[salted].events.extend((made.head, made.body))

    def unsendable(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch` that cannot be sent, with the reason in a last column `reason`."""
        problems = [str(made) if isinstance(made, ValueError) else None for made in self._made(batch)]
        reasons = pa.array(problems, pa.string())
        return batch.append_column("reason", reasons).filter(reasons.is_valid())

    def _made(self, batch: pa.RecordBatch) -> Iterator[_Event | ValueError]:
        """The event of each row, or why it cannot be sent."""
        try:
            yield from self._made_together(batch)
        except UnicodeDecodeError:  # before the first row; casts in Spark make such texts
            for row in range(batch.num_rows):
                try:
                    yield from self._made_together(batch.slice(row, 1))
                except UnicodeDecodeError:
                    yield ValueError("it has a text that is no UTF-8")

    def _made_together(self, batch: pa.RecordBatch) -> Iterator[_Event | ValueError]:
        columns, encoder = self._columns, Encoder()
        self._ids = ()
        bodies, keys, partitions = (
            repeat(None) if place is None else batch.column(place).to_pylist()
            for place in (columns.body, columns.key, columns.partition)
        )
        headers = columns.headers is not None
        properties = _headers(batch.column(columns.headers)) if headers else _pairs(batch, columns.properties)
        for row in zip(bodies, keys, partitions, properties, _pairs(batch, columns.system), strict=False):
            try:
                made: _Event | ValueError = self._event(encoder, *row)
            except ValueError as problem:
                made = problem
            yield made

    def _event(self, encoder: Encoder, body: Any, key: Any, partition: Any, own: _Pairs, others: _Pairs) -> _Event:
        """Raises ValueError."""
        if partition is not None:
            partition = self._checked_partition(key, str(partition))
        key = _checked_key(key)
        envelope = encoder.envelope(key)
        most = self._most(partition) - len(envelope)
        if isinstance(body, str):
            body = body.encode()
        (names, values), beside = self._checked(*own), None
        if others[0]:
            beside = system(zip(*self._checked(*others), strict=True))
        head = encoder.head(body, key, list(map(encoder.pair, names, values)), beside)
        if len(head) + len(body or b"") > most:  # numbers may have come in types of fewer bytes
            head = encoder.head(body, key, list(map(small_pair, names, values)), beside)
        if (size := len(head) + len(body or b"")) > most:
            what = f" with the key {redacted(key)}" if key else ""
            raise ValueError(f"the event{what} has {size:,} bytes with its properties, and the hub takes {most:,}")
        return _Event(partition, key, envelope, head, body or b"")

    def _checked_partition(self, key: Any, partition: str) -> str:
        """Raises ValueError."""
        if key:
            raise ValueError("it has both a partition key and a partition: allowed is one of them, the other null")
        self._ids = self._ids or self._partitions()
        if partition not in self._ids:
            raise ValueError(f"partition {redacted(partition)} does not exist: the hub has {len(self._ids)}, from 0 on")
        return partition

    def _checked(self, names: list[str], values: list[Any]) -> _Pairs:
        """Raises ValueError if a name is missing or comes twice, and for a value that is no JSON."""
        if None in names:
            raise ValueError("it has a header without a key")
        if len(names) > 1:
            _check_single(names)
        return names, list(map(_from_json, names, values)) if self._columns.json else values


def _checked_key(key: Any) -> str | None:
    """The key as text; None for none. Raises ValueError."""
    if not key:
        return None
    try:
        text: str = key.decode() if isinstance(key, bytes) else key
    except UnicodeDecodeError:
        raise ValueError("its key is no UTF-8, and a partition key is text") from None
    if len(text) > _LONGEST_KEY:
        raise ValueError(f"its partition key has {len(text)} characters: allowed are {_LONGEST_KEY}")
    return text


#: Names and values of properties.
_Pairs = tuple[list[str], list[Any]]


def _headers(column: pa.Array) -> Iterator[_Pairs]:
    """The properties of each row, from a column as Kafka's sink has it. A name may be null."""
    for given in column.to_pylist():
        headers = [each for each in given or () if each is not None]
        yield [each["key"] for each in headers], [each["value"] for each in headers]


def _pairs(batch: pa.RecordBatch, place: int | None) -> Iterator[_Pairs]:
    """The pairs of each row, from a column of maps."""
    if place is None:
        yield from repeat(([], []))
        return
    maps = batch.column(place)
    ends = maps.offsets.to_pylist()
    first, last = ends[0], ends[-1]
    names, values = (each.slice(first, last - first).to_pylist() for each in (maps.keys, maps.items))
    for begin, end in pairwise(ends):
        yield names[begin - first : end - first], values[begin - first : end - first]


def _check_single(names: list[str]) -> None:
    counts = Counter(map(TEXT_SALT.__add__, names))
    if len(counts) < len(names):
        twice = counts.most_common(1)[0][0].removeprefix(TEXT_SALT)
        raise ValueError(f"it has several values of {redacted(twice)}, and an event has one")


def _from_json(name: str, text: str | None) -> Any:
    """The value that the source with `jsonProperties` writes in this way: binary is an array of its bytes."""
    if text is None:
        return None
    if text.lstrip()[:1] in ("[", "{"):  # text, and not read: names can be chosen so that reading takes minutes
        numbers: list[Any] = json.loads(text) if _BINARY.fullmatch(text) else [None]
        return text if not _BYTES.issuperset(numbers) else bytes(each & 0xFF for each in numbers)
    try:
        return _decode(text)
    except OverflowError:
        raise ValueError(f"its property {redacted(name)} is a number that needs more than 64 bits") from None
    except ValueError:
        raise ValueError(f"its property {redacted(name)} is no JSON, as jsonProperties=true asks for") from None


def _whole(text: str) -> int:
    if len(text) > _LONGEST_NUMBER or (value := int(text)) not in _LONG:
        raise OverflowError
    return value


def _double(text: str) -> float:
    value = float(text)
    if math.isinf(value) or (value == 0 and text.lower().partition("e")[0].strip("-0.")):
        raise OverflowError
    return value


_decode = json.JSONDecoder(parse_int=_whole, parse_float=_double).decode
