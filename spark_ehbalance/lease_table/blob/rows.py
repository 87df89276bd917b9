"""A partition's lease as one handle knows it: what the two blobs say, and what the handle has seen of them. Pure.

A renewal counter is not in the blobs. It is counted from what a handle sees change, beginning with 0: the ownership
blob's ETag, of which every write makes a new one. An epoch is in those ownership blobs only that a query has written. A
handle counts from there as it sees owners change. Where there is none it begins with the blob's time, which is later
than any epoch that a query had before: so two ownerships of one query never have the same one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.position import Position


@dataclass(frozen=True, slots=True)
class BlobState:
    """What a listing has found of a partition. Without an ownership blob there are no `owner`, `etag` and time, and no
    `epoch` unless a query has written that blob."""

    owner: str | None = None
    epoch: int | None = None
    etag: str | None = None
    modified_ms: int = 0
    checkpoint: Position | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """`lease` is what the snapshot has, `etag` that of the ownership blob, `stored` the checkpoint blob's position.

    The lease's checkpoint is another one than the stored one if that was not written yet, or is not followed.
    """

    lease: Lease
    etag: str | None = None
    stored: Position | None = None


def new_row(partition: str, found: BlobState) -> Row:
    """The row of a partition that this handle has not seen before."""
    lease = Lease(
        partition,
        found.owner,
        found.modified_ms if found.epoch is None else found.epoch,
        renewed_at_ms=found.modified_ms,
        owned_since_ms=found.modified_ms,
        checkpoint=found.checkpoint,
    )
    return Row(lease, found.etag, found.checkpoint)


def update_row(row: Row, found: BlobState, *, own: bool) -> Row:
    """`row` after another look, which has found that the partition is this member's `own`, or is not.

    A checkpoint that goes backwards is not followed while the partition is one's own: every SDK writes checkpoints
    without a condition, so it is a former owner's late one. One that has gone was deleted by hand, and stays as it was
    seen last: else the partition would begin at the starting position, and skip events if that is the latest.
    """
    lease = row.lease
    if found.etag != row.etag:
        lease = replace(lease, renewal=lease.renewal + 1, renewed_at_ms=found.modified_ms)
    if found.owner != lease.owner:
        lease = replace(lease, owner=found.owner, epoch=lease.epoch + 1, owned_since_ms=found.modified_ms)
    if found.epoch is not None and found.epoch > lease.epoch:
        lease = replace(lease, epoch=found.epoch)
    if found.checkpoint and not (own and _is_behind(found.checkpoint, lease.checkpoint)):
        lease = replace(lease, checkpoint=found.checkpoint)
    same = lease == row.lease and (found.etag, found.checkpoint) == (row.etag, row.stored)
    return row if same else Row(lease, found.etag, found.checkpoint)


def claims_or_renews(before: Lease, wanted: Lease) -> bool:
    """Whether the step from `before` to `wanted` writes the ownership blob.

    A checkpoint counts as a renewal in the group's state, but is in another blob.
    """
    steps = wanted.renewal - before.renewal - (wanted.checkpoint != before.checkpoint)
    return wanted.owner != before.owner or wanted.epoch != before.epoch or steps > 0


def _is_behind(position: Position, other: Position | None) -> bool:
    return other is not None and position.sequence_number < other.sequence_number
