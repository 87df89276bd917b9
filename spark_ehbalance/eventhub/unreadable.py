"""The option `onMalformed`: unreadable events fail the query, are kept as rows of what is left, or are skipped.

If not even the sequence number can be read, every policy fails: where reading would continue is unknown.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_ehbalance.eventhub.rows import Rows, sequence_numbers

#: The values of the option `onMalformed`.
POLICIES = FAIL, KEEP, SKIP = ("fail", "keep", "skip")


_OTHER_POLICY = (
    "Set onMalformed=skip to go on without such events, or onMalformed=keep to have a row for each with its bytes"
)
_PAST_IT = "Move the position past it with `ehbalance seek`"


class Settled(NamedTuple):
    """The rows to return, and the position after them. `failure` is why the next event fails the range, `skipped` is
    how many were left out, and `problem` why the first of these was."""

    batch: pa.RecordBatch
    first: int | None  # sequence number of the first event, None if there is none
    next: int | None  # the lowest that the next event can have, None if it is not known
    failure: str | None = None
    skipped: int = 0
    problem: str | None = None


def until_gap(rows: Rows, expected: int | None) -> Rows:
    """The prefix of events with consecutive sequence numbers, and the event after it if it has none.

    `expected` is the number of the first event, None if it may have any.
    """
    batch, unreadable = rows
    numbers = sequence_numbers(batch)
    numbered = next((at for at in sorted(unreadable) if not numbers[at].is_valid), len(numbers))
    if numbered:
        found = numbers.slice(0, numbered).to_numpy()
        wrong = found != np.arange(len(found)) + (found[0] if expected is None else expected)
        if wrong.any():
            end = int(wrong.argmax())
            return Rows(batch.slice(0, end), {at: why for at, why in unreadable.items() if at < end})
    end = numbered + 1
    return Rows(batch.slice(0, end), {at: why for at, why in unreadable.items() if at < end})


def settle(rows: Rows, expected: int | None, policy: str) -> Settled:
    """Apply `policy` to the events that cannot be read.

    `expected` is the lowest sequence number that the first event can have, None if it is not known. The rows before an
    event that fails the range are returned.
    """
    batch, unreadable = rows
    numbers = sequence_numbers(batch)
    if not len(numbers):
        return Settled(batch, None, expected)
    if not unreadable:
        return Settled(batch, numbers[0].as_py(), numbers[-1].as_py() + 1)
    known, failure, skipped = numbers.to_pylist(), None, list[int]()
    for at in sorted(unreadable):
        number, lowest = known[at], known[at - 1] + 1 if at else expected
        if number is None or (lowest is not None and number < lowest):
            failure = f"an event at {lowest} or later has no sequence number. {_PAST_IT}"
        elif policy == FAIL:
            failure = f"event {number} cannot be read: {unreadable[at]}. {_OTHER_POLICY}"
        if failure is not None:
            batch, expected = batch.slice(0, at), lowest
            break
        skipped += [at] if policy == SKIP else []
    else:
        expected = known[-1] + 1
    first = known[0] if batch.num_rows else None
    if not skipped:
        return Settled(batch, first, expected, failure)
    kept = np.ones(batch.num_rows, np.bool_)
    kept[skipped] = False
    batch = batch.filter(pa.array(kept))
    problem = f"event {known[skipped[0]]} cannot be read: {unreadable[skipped[0]]}"
    return Settled(batch, first, expected, failure, len(skipped), problem)
