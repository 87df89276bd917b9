"""Compares what two readers have read of a hub with what was sent, and finds the fault that explains each repetition.
Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpMessageBodyType

from chaos.round_trip_events import SLICES, event, from_json, number_of

#: Seconds after the end of a fault in which what it has held up still arrives.
_LATE = 3.0


@dataclass
class Fault:
    """A fault between two times of the wall clock. `repeats`: whether it may lead to a repetition."""

    kind: str
    began: float
    ended: float = math.inf
    repeats: bool = True


class Row(NamedTuple):
    """An event as a reader has it: values of properties as they were sent, strings as bytes if it cannot tell."""

    partition: str
    sequence: int
    at: float
    body: bytes | None
    key: str | None
    properties: Mapping[str, Any]


class Place(NamedTuple):
    """Where an event lies, and when the hub has taken it."""

    at: float
    partition: str
    sequence: int


@dataclass
class Account:
    """What a reader has found of `total` events."""

    total: int
    places: dict[int, list[Place]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    disorder: list[str] = field(default_factory=list)
    repeated: int = 0
    explained: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(map(len, self.places.values()))

    @property
    def passed(self) -> bool:
        return not (self.wrong or self.missing or self.disorder or self.unexplained)

    def sequence(self) -> set[tuple[int, Place]]:
        """Which event lies where: the same for all readers."""
        return {(number, place._replace(at=0)) for number, places in self.places.items() for place in places}


def account(
    rows: Iterable[Row], seed: int, total: int, faults: Iterable[Fault], before: Account | None = None
) -> Account:
    """The account of a hub that was filled with the events, or with what is in the hub of `before`."""
    result, faults = Account(total), list(faults)
    for row in sorted(rows, key=lambda row: (row.partition, row.sequence)):
        number = number_of(row.body, {name: value for name, value in row.properties.items() if name == "number"})
        if not 0 <= number < total:
            result.wrong.append(f"no event of ours in partition {row.partition} at {row.sequence}")
            continue
        if what := _difference(row, seed, number, total):
            result.wrong.append(f"event {number} in partition {row.partition} at {row.sequence}: {what}")
        result.places[number].append(Place(row.at, row.partition, row.sequence))
    for number in range(total):
        places, sent = result.places.get(number, []), len(before.places[number]) if before else 1
        if len(places) < max(sent, 1):
            result.missing.append(number)
        for place in sorted(places)[sent:]:
            _explain(result, number, min(places).at, place, faults)
    _order(result, seed)
    return result


def _difference(row: Row, seed: int, number: int, total: int) -> str:
    sent = event(seed, number, total)
    if row.body != sent.body:
        return f"its body is {str(row.body)[:40]} instead of {str(sent.body)[:40]}"
    if row.key != sent.key:
        return f"its key is {row.key!r} instead of {sent.key!r}"
    if sent.partition is not None and str(sent.partition) != row.partition:
        return f"it was for partition {sent.partition}"
    if list(row.properties) != list(sent.properties) and row.properties.keys() != sent.properties.keys():
        return f"its properties are {list(row.properties)} instead of {list(sent.properties)}"
    for name, value in sent.properties.items():
        got = row.properties[name]
        if got != value or type(got) is not type(value):
            return f"its property {name!r} is {got!r} instead of {value!r}"
    return ""


def _explain(result: Account, number: int, first: float, place: Place, faults: list[Fault]) -> None:
    result.repeated += 1
    kinds = [f.kind for f in faults if f.repeats and f.began <= place.at + 0.01 and f.ended + _LATE >= first]
    if kinds:
        result.explained[kinds[-1]] += 1
    else:
        result.unexplained.append(f"event {number} in partition {place.partition} at {place.sequence}, {place.at:.3f}")


def _order(result: Account, seed: int) -> None:
    """The first occurrences of a key's events are in order, and those sent to one partition by one task."""
    groups: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    partitions: dict[str, set[str]] = defaultdict(set)
    for number in sorted(result.places):
        sent = event(seed, number, result.total)
        places = result.places[number]
        if sent.key is not None:
            partitions[sent.key].update(each.partition for each in places)
        if sent.key is not None or sent.partition is not None:
            group = (number * SLICES // result.total, places[0].partition)
            groups[group].append((min(each.sequence for each in places), number))
    for group, found in groups.items():
        result.disorder += [f"event {b[1]} is before {a[1]}: {group}" for a, b in pairwise(found) if a[0] > b[0]]
    result.disorder += [f"key {key!r} is in {sorted(of)}" for key, of in partitions.items() if len(of) > 1]


def of_client(partition: str, given: EventData, sent: Mapping[str, Any]) -> Row:
    """As azure-eventhub's client reads an event, which does not tell strings from binary: as was `sent`."""
    body = b"".join(given.body) if given.body_type is AmqpMessageBodyType.DATA else given.body  # type: ignore[arg-type]
    properties = {str(name, "utf-8"): value for name, value in (given.properties or {}).items()}
    for name, value in properties.items():
        if isinstance(value, bytes) and isinstance(sent.get(name), str):
            properties[name] = value.decode()
    key = None if given.partition_key is None else given.partition_key.decode()
    at, sequence = given.enqueued_time, given.sequence_number
    assert at is not None
    assert sequence is not None
    return Row(partition, sequence, at.timestamp(), body, key, properties)  # type: ignore[arg-type]


def of_spark(table: pa.Table) -> Iterable[Row]:
    """The rows that the source has read with `jsonProperties`."""
    for partition, sequence, at, body, key, properties in zip(*(c.to_pylist() for c in table.columns), strict=True):
        values = {name: from_json(text) for name, text in properties or ()}
        yield Row(partition, sequence, at.timestamp(), body, key, values)
