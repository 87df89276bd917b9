"""Why a partition has changed hands, as the history tells. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_ehbalance.cli.reasons.facts import Facts
from spark_ehbalance.cli.reasons.findings import span
from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.text import time_of


def moves(facts: Facts, partition: str, most: int = 3) -> list[str]:
    """A sentence for each of its last changes, the newest first."""
    rows = [each for each in facts.history if each.partition == partition]
    rows = rows[-most:]
    return [
        f"{time_of(each.at_ms)} ({span(facts.now_ms - each.at_ms)} ago): {_sentence(each, rows[:at])}."
        for at, each in reversed([*enumerate(rows)])
    ]


def _sentence(row: OwnershipChange, earlier: Sequence[OwnershipChange]) -> str:
    before, owner, why = row.owner_before or "nobody", row.owner or "nobody", f": {row.why}" if row.why else ""
    if row.event == "HandOver":
        return f"{before} handed it over to {owner}, {row.why or 'whose share it belongs to'}"
    if row.event == "Release":
        return f"{before} gave it back, as it was ending or leaving"
    if row.event == "Claim":
        if row.owner_before is None:
            return f"{owner} took it, as nobody owned it"
        if row.owner_before == row.owner:
            return f"{owner} took it back, as it was started again"
        return f"{owner} took it from {before}{why or ', which had shown no sign of life or was late to hand it over'}"
    if row.event == "Steal":
        return f"{owner} took it from {before} without asking, as its strategy does: the batch in flight was read again"
    if row.event == "PutBack":
        return f"{row.by} put it back, as somebody had removed it from the lease table or set it back"
    return f"{row.by} ordered {row.event}{f' {row.why}' if row.why else ''}"
