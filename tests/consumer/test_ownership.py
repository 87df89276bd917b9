"""Leases as azure-eventhub's load balancing sees them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ehbalance.consumer.ownership import checkpoint, etag, ownership
from spark_ehbalance.leases.model import Handover, Lease
from spark_ehbalance.values.position import Position

NOW, EXPIRATION = 1_000_000.0, 60.0


def entry(lease: Lease, silence: float = 0.0, consumers: dict[str, list[str]] | None = None) -> dict[str, Any] | None:
    found = list(ownership({lease.partition: lease}, consumers or {}, {lease.partition: silence}, NOW, EXPIRATION))
    return found[0] if found else None


def owner(lease: Lease, silence: float = 0.0, consumers: dict[str, list[str]] | None = None) -> str:
    found = entry(lease, silence, consumers)
    assert found is not None
    return str(found["owner_id"])


def test_what_was_never_owned_is_not_listed() -> None:
    assert entry(Lease("0")) is None


def test_free_and_expired_partitions_have_nobody_as_owner() -> None:
    assert owner(Lease("0", epoch=3)) == ""
    assert owner(Lease("0", "q", 3), silence=1.0) == ""
    assert owner(Lease("0", "q", 3), silence=0.99) == "q"


@given(st.floats(0, 2))
def test_the_client_judges_by_its_interval_as_the_group_by_its_lease_duration(silence: float) -> None:
    found = entry(Lease("0", "q", 3), silence)
    assert found is not None
    dead = not found["owner_id"] or found["last_modified_time"] + EXPIRATION < NOW
    assert dead == (silence >= 1)


def test_a_consumers_own_partition_is_its_own_as_long_as_it_may_read_it() -> None:
    asked = Lease("0", "a", 3, handover=Handover("q", 1000))
    assert owner(asked, consumers={"a": ["0"]}) == "a"
    assert owner(asked, silence=2.0, consumers={"a": ["0"]}) == "a"
    assert owner(asked, consumers={"a": []}) == "q", "it is not begun before it is handed over"
    assert owner(asked) == "a", "another store's consumer reads it on"


def test_an_etag_changes_with_the_owner_alone() -> None:
    lease = Lease("0", "a", 3)
    renewed = lease.renewed(7, Position(5), None)
    assert etag(renewed.epoch, renewed.owner) == etag(lease.epoch, lease.owner)
    assert len({etag(3, "a"), etag(4, "a"), etag(3, None), etag(3, "b")}) == 4


@pytest.mark.parametrize(
    ("position", "start_after"),
    [(Position(-1), "-1"), (Position(0), 0), (Position(17), 17), (Position(17, "offset 1700"), "offset 1700")],
)
def test_the_client_starts_after_the_checkpoint(position: Position, start_after: str | int) -> None:
    found = checkpoint(Lease("0", checkpoint=position))
    assert found["sequence_number"] == position.sequence_number
    assert found["offset"] == start_after
    assert isinstance(found["offset"], type(start_after))
    assert found["offset"], "else the client would take it for no checkpoint"
