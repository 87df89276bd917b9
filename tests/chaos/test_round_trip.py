"""What the round trip's account finds, in events that were tampered with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.round_trip_account import Account, Fault, Row, account
from chaos.round_trip_events import PARTITIONS, event, number_of
from spark_ehbalance.partition_keys import partition_index

SEED, TOTAL = 5, 800


def rows() -> list[Row]:
    """All events as the sink sends them, one each second."""
    found = []
    for number in range(TOTAL):
        sent = event(SEED, number, TOTAL)
        partition = sent.partition if sent.key is None else partition_index(sent.key, PARTITIONS)
        found.append(Row(str(partition or 0), number, 1000.0 + number, sent.body, sent.key, sent.properties))
    return found


def again(found: list[Row], number: int) -> None:
    found.append(found[number]._replace(sequence=TOTAL, at=3000.0))


def swap(found: list[Row]) -> None:
    key = next(row.key for row in found if row.key and sum(each.key == row.key for each in found) > 1)
    first, second = [place for place, row in enumerate(found) if row.key == key][:2]
    found[first], found[second] = (
        found[first]._replace(sequence=second),
        found[second]._replace(sequence=first),
    )


def found_in(change: Callable[[list[Row]], object], *faults: Fault) -> Account:
    changed = rows()
    change(changed)
    return account(changed, SEED, TOTAL, faults)


def test_all_as_sent() -> None:
    assert all(number_of(row.body, dict(row.properties)) == number for number, row in enumerate(rows()))
    result = found_in(lambda found: None)
    assert result.passed
    assert (result.rows, result.repeated) == (TOTAL, 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.pop(17),
        lambda found: again(found, 17),
        swap,
        lambda found: found.__setitem__(3, found[3]._replace(body=b"3;x")),
        lambda found: found.__setitem__(3, found[3]._replace(key="another")),
        lambda found: found.__setitem__(3, found[3]._replace(properties={**found[3].properties, "more": 1})),
    ],
)
def test_what_is_not_as_sent_is_found(change: Callable[[list[Row]], object]) -> None:
    assert not found_in(change).passed


def test_a_repetition_is_explained_by_a_fault_between_the_two() -> None:
    between, before = Fault("drop", 2000.0, 2001.0), Fault("drop", 900.0, 901.0)
    assert found_in(lambda found: again(found, 17), between).explained == {"drop": 1}
    for fault in (before, Fault("busy", 2000.0, 2001.0, repeats=False)):
        assert not found_in(lambda found: again(found, 17), fault).passed
