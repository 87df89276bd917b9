"""Leases as the handles of a blob store observe them."""

from __future__ import annotations

from dataclasses import replace

from spark_ehbalance.lease_table.blob.rows import BlobState, Row, epoch_to_write, new_row, update_row


def claimed(row: Row) -> int:
    """The epoch that is written if a query claims the partition."""
    return epoch_to_write(row, replace(row.lease, owner="ann", epoch=row.lease.epoch + 1))


def test_queries_that_missed_each_others_tenure_have_different_epochs() -> None:
    """With the same epoch, a restarted query would count a batch as complete that the processor had cut short."""
    processor = BlobState("theirs", None, "1", modified_ms=5000)
    one, other = new_row("0", processor), new_row("0", processor)
    taken_back = update_row(other, replace(processor, etag="3", modified_ms=9000), own=False)
    assert claimed(one) < claimed(taken_back)


def test_first_claim_and_renewals_count_from_the_known_epoch() -> None:
    assert claimed(new_row("0", BlobState())) == 1
    own = new_row("0", BlobState("ann", 3, "1", modified_ms=5000))
    assert epoch_to_write(own, replace(own.lease, renewal=1)) == 3
    assert claimed(own) == 4
