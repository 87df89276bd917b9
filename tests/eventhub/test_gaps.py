"""Where a gap in the sequence numbers begins, even among malformed events."""

from __future__ import annotations

import pytest

from spark_ehbalance.eventhub import rows
from spark_ehbalance.eventhub.rows import SEQUENCE_NUMBER, Rows, UnreadableError, sequence_numbers, until_gap


def _events(*numbers: int | None) -> Rows:
    """Valid events with these numbers; malformed ones for None and for negative numbers."""
    unreadable = {at: "broken" for at, number in enumerate(numbers) if number is None or number < 0}
    events: list[rows.Event] = []
    for at, number in enumerate(numbers):
        known = None if number is None else {SEQUENCE_NUMBER: abs(number)}
        sound = (b"", {SEQUENCE_NUMBER: number}, {})
        events.append(rows.unreadable(b"", UnreadableError("broken", known)) if at in unreadable else sound)
    return Rows(rows.record_batch(events, "0", json_properties=False), unreadable)


@pytest.mark.parametrize(
    ("numbers", "expected", "left"),
    [
        ((), 5, 0),
        ((5, 6, 7), 5, 3),
        ((5, 6, 7), None, 3),
        ((6, 7), 5, 0),
        ((5, 7, 8), 5, 1),
        ((5, 7, 6, 8), 5, 1),
        ((5, 6, 8, 7, 9), None, 2),
        ((5, 5, 6), 5, 1),
        ((4, 5), 5, 0),
        ((5, None, 7), 5, 2),
        ((None, 6), 5, 1),
        ((5, 7, None), 5, 1),
        ((5, -6, 7), 5, 3),
        ((5, -7, 8), 5, 1),
        ((5, -3, 7), 5, 1),
        ((-5, None, 9, None), 5, 2),
    ],
)
def test_rows_end_at_the_first_gap(numbers: tuple[int | None, ...], expected: int | None, left: int) -> None:
    given = _events(*numbers)
    found = until_gap(given, expected)
    assert sequence_numbers(found.batch).to_pylist() == sequence_numbers(given.batch).to_pylist()[:left]
    assert found.unreadable == {at: why for at, why in given.unreadable.items() if at < left}
