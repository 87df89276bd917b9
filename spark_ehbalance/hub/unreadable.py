"""What becomes of events that cannot be read: the query fails, or a row is kept of what is left of each, or none is.

An event may be so broken that not even its sequence number can be read. Numbers rise, so that it is the expected one or
a higher one; it is known only where those before and after leave room for no other. The next event is expected after
the lowest that it can be, so that nothing is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import pyarrow as pa

from spark_ehbalance.hub import rows

#: The values of the option `onMalformed`.
POLICIES = FAIL, KEEP, SKIP = ("fail", "keep", "skip")


class Settled(NamedTuple):
    """What is given out of the events that have come, and where that leaves the reader."""

    batch: pa.RecordBatch
    first: int | None  # sequence number of the first one, None if it is not known
    next: int | None  # the lowest that an event after those given out or left out can have, None if it is not known
    problem: str | None = None  # which event was the first that could not be read, and why


def settle(batch: pa.RecordBatch, unreadable: Mapping[int, str], expected: int | None, policy: str) -> Settled:
    """Deal with the events that could not be read, by their place in `batch`, for the reasons given.

    `expected` is the lowest sequence number that the first event can have, None if it is not known. With the policy
    `FAIL` all before the first unreadable event are given out.
    """
    numbers = rows.sequence_numbers(batch)
    if not len(numbers):
        return Settled(batch, None, expected)
    if not unreadable:
        return Settled(batch, numbers[0].as_py(), numbers[-1].as_py() + 1)
    known, following = _known(numbers.to_pylist(), unreadable, expected)
    first = next((number - place for place, number in enumerate(known) if number is not None), None)
    at = min(unreadable)
    last = known[at - 1] if at else None
    lowest = expected if last is None else last + 1
    problem = f"{_name(known[at], lowest)} cannot be read: {unreadable[at]}"
    if policy == FAIL:
        return Settled(batch.slice(0, at), first, lowest, problem)
    if policy == SKIP:
        batch = batch.filter(pa.array([place not in unreadable for place in range(len(known))]))
    else:
        where = batch.schema.get_field_index("sequenceNumber")
        batch = batch.set_column(where, batch.schema.field(where), pa.array(known, pa.int64()))
    return Settled(batch, first, following, problem)


def _known(
    numbers: list[int | None], unreadable: Collection[int], expected: int | None
) -> tuple[list[int | None], int | None]:
    """The sequence numbers, with those that can be no other; and the lowest that the next event can have."""
    known, unknown = list(numbers), list[int]()
    for place, number in enumerate(numbers):
        if place in unreadable and number is not None and expected is not None and number < expected:
            number = None  # it contradicts those before it
        if number is None:
            known[place] = None
            unknown.append(place)
            expected = None if expected is None else expected + 1
            continue
        if number == expected:
            for each in unknown:
                known[each] = number - place + each
        unknown.clear()
        expected = number + 1
    return known, expected


def _name(number: int | None, lowest: int | None) -> str:
    if number is not None:
        return f"event {number}"
    return f"an event with an unreadable sequence number{'' if lowest is None else f' ({lowest} or higher)'}"
