"""Counts moves in a history that also contains operators' orders."""

from __future__ import annotations

from pathlib import Path

from chaos.fleet import moves_by_kind
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.stores.delta import DeltaStore


def row(event: str, before: str | None, after: str | None, by: str) -> OwnershipChange:
    return OwnershipChange(0, "0", event, before, after, 1, None, by)


def test_orders_do_not_count_as_moves(tmp_path: Path) -> None:
    store = DeltaStore(str(tmp_path / "leases"))
    store.record(
        [
            row("Claim", None, "a", "a"),
            row("Transfer", "a", "a", "operator"),
            row("HandOver", "a", "b", "a"),
            row("PinTo", "b", "b", "operator"),
            row("Unpin", "b", "b", "operator"),
            row("Seek", "b", "b", "operator"),
            row("Claim", "b", "b", "b"),
            OwnershipChange(0, None, "Drain", "b", "b", None, None, "operator", "why"),
            row("Release", "b", None, "b"),
        ]
    )
    assert moves_by_kind(store) == {
        "claimed, free": 1,
        "handed over": 1,
        "claimed again by a restarted owner": 1,
        "released": 1,
    }
