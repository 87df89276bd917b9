"""A partition's lease, as one handle observes it in the partition's two blobs. Pure.

The blobs have no renewal counter, so a handle counts the changes of the ownership blob's ETag. Only ownership blobs
written by a query contain an epoch. A handle increments the epoch when it reads a different owner. If the blob has no
epoch, the handle begins with the blob's time, and claims with a later time. This is higher than any earlier epoch of a
query, so two tenures of queries never have the same epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.position import Position


@dataclass(frozen=True, slots=True)
class BlobState:
    """A partition's blobs in a listing. If there is no ownership blob, `owner`, `etag` and the time are None. `epoch`
    is None unless a query wrote the ownership blob."""

    owner: str | None = None
    epoch: int | None = None
    etag: str | None = None
    modified_ms: int = 0
    checkpoint: Position | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A `lease` of the snapshot, the ownership blob's `etag`, and the position `stored` in the checkpoint blob.

    The lease's checkpoint differs from the stored position if the checkpoint is not written yet, or if the stored
    position is ignored. `has_epoch`: whether the ownership blob contains an epoch.
    """

    lease: Lease
    etag: str | None = None
    stored: Position | None = None
    has_epoch: bool = True


def new_row(partition: str, found: BlobState) -> Row:
    """The row of a partition at this handle's first read."""
    lease = Lease(
        partition,
        found.owner,
        found.modified_ms if found.epoch is None else found.epoch,
        renewed_at_ms=found.modified_ms,
        owned_since_ms=found.modified_ms,
        checkpoint=found.checkpoint,
    )
    return Row(lease, found.etag, found.checkpoint, found.epoch is not None)


def update_row(row: Row, found: BlobState, *, own: bool) -> Row:
    """`row` after another read. `own` is whether this member owns the partition.

    While this member owns the partition, a checkpoint that moves back is ignored. It is a former owner's late
    checkpoint, because every SDK writes checkpoints unconditionally. If a checkpoint was deleted, its last value is
    kept; otherwise, the partition would begin at the starting position, and skip events if that is `latest`.
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
    return row if same else Row(lease, found.etag, found.checkpoint, found.epoch is not None)


def claims_or_renews(before: Lease, wanted: Lease) -> bool:
    """Whether the change from `before` to `wanted` affects the ownership blob.

    In the group's state, a checkpoint counts as a renewal; here, checkpoints are stored in another blob.
    """
    steps = wanted.renewal - before.renewal - (wanted.checkpoint != before.checkpoint)
    return wanted.owner != before.owner or wanted.epoch != before.epoch or steps > 0


def epoch_to_write(row: Row, wanted: Lease) -> int:
    """The epoch in the ownership blob of `wanted`. If the blob of the former owner has none, it is later than that
    blob's time: this handle may have missed owners, so its count may repeat the epoch of another query."""
    claims = wanted.owner is not None and wanted.epoch > row.lease.epoch
    return max(wanted.epoch, row.lease.renewed_at_ms + 1) if claims and not row.has_epoch else wanted.epoch


def _is_behind(position: Position, other: Position | None) -> bool:
    return other is not None and position.sequence_number < other.sequence_number
