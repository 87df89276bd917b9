"""The option `onMalformed`: unreadable events fail the query, are kept as rows of what is left, or are skipped.

If not even the sequence number can be read, it is the expected one or a higher one, and known only if the events before
and after leave room for no other. The next event is expected after the lowest number that this one can have.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_ehbalance.hub.rows import Rows, sequence_numbers

#: The values of the option `onMalformed`.
POLICIES = FAIL, KEEP, SKIP = ("fail", "keep", "skip")


class Settled(NamedTuple):
    """The rows to return, and the position after them."""

    batch: pa.RecordBatch
    first: int | None  # sequence number of the first event, None if it is not known
    next: int | None  # the lowest that the event after those returned or skipped can have, None if it is not known
    problem: str | None = None  # the first event that cannot be read, and why


def until_gap(rows: Rows, expected: int | None) -> Rows:
    """The events before the first one whose sequence number is not one more than that of the event before it.

    `expected` is the number of the first event, None if it may have any. An event whose number cannot be read may be
    before the gap or after it, so those next to a gap are left out too.
    """
    batch, unreadable = rows
    numbers = sequence_numbers(batch)
    if not unreadable and len(numbers):
        found = numbers.to_numpy()
        wrong = found != np.arange(len(found)) + (found[0] if expected is None else expected)
        return Rows(batch.slice(0, wrong.argmax())) if wrong.any() else rows
    certain = 0  # events that are before any gap
    for index, number in enumerate(numbers.to_pylist()):
        if index in unreadable and (number is None or expected is None or number < expected):
            expected = None if expected is None else expected + 1
            continue
        if expected is not None and number != expected:
            return Rows(batch.slice(0, certain), {at: why for at, why in unreadable.items() if at < certain})
        certain, expected = index + 1, number + 1
    return rows


def settle(rows: Rows, expected: int | None, policy: str) -> Settled:
    """Apply `policy` to the events that cannot be read.

    `expected` is the lowest sequence number that the first event can have, None if it is not known. With the policy
    `FAIL` the rows before the first unreadable event are returned.
    """
    batch, unreadable = rows
    numbers = sequence_numbers(batch)
    if not len(numbers):
        return Settled(batch, None, expected)
    if not unreadable:
        return Settled(batch, numbers[0].as_py(), numbers[-1].as_py() + 1)
    known, following = _known(numbers.to_pylist(), unreadable, expected)
    first = next((number - index for index, number in enumerate(known) if number is not None), None)
    failed = min(unreadable)
    before = known[failed - 1] if failed else None
    lowest = expected if before is None else before + 1
    problem = f"{_name(known[failed], lowest)} cannot be read: {unreadable[failed]}"
    if policy == FAIL:
        return Settled(batch.slice(0, failed), first, lowest, problem)
    if policy == SKIP:
        batch = batch.filter(pa.array([index not in unreadable for index in range(len(known))]))
    else:
        column = batch.schema.get_field_index("sequenceNumber")
        batch = batch.set_column(column, batch.schema.field(column), pa.array(known, pa.int64()))
    return Settled(batch, first, following, problem)


def _known(
    numbers: list[int | None], unreadable: Collection[int], expected: int | None
) -> tuple[list[int | None], int | None]:
    """The sequence numbers, filled in where only one is possible; and the lowest that the next event can have."""
    known, unknown = list(numbers), list[int]()
    for index, number in enumerate(numbers):
        if index in unreadable and number is not None and expected is not None and number < expected:
            number = None  # it contradicts those before it
        if number is None:
            known[index] = None
            unknown.append(index)
            expected = None if expected is None else expected + 1
            continue
        if number == expected:
            for each in unknown:
                known[each] = number - index + each
        unknown.clear()
        expected = number + 1
    return known, expected


def _name(number: int | None, lowest: int | None) -> str:
    if number is not None:
        return f"event {number}"
    return f"an event with an unreadable sequence number{'' if lowest is None else f' ({lowest} or higher)'}"
