"""`ehbalance init`: make a group's lease table, or check the one that exists."""

from __future__ import annotations

from spark_ehbalance.cli.common import check_hub_of, check_positions, hub_states, say
from spark_ehbalance.cli.from_checkpoint import FromCheckpoint, Replaces, check_same_hub, recover, restore
from spark_ehbalance.cli.options import BlobNamespace, HubOptions, LeaseTable, StorageOptions
from spark_ehbalance.source.options import checked_location

#: Why a lost table's positions cannot be restored there.
_LACKS = "which keeps no record of the tables that it replaces: allowed is a lease table in Delta"


def init(
    lease_table: LeaseTable,
    hub: HubOptions,
    storage: StorageOptions,
    blob_namespace: BlobNamespace = None,
    from_checkpoint: FromCheckpoint = None,
    replaces: Replaces = None,
) -> None:
    """Make the lease table of a group, or check the one that exists.

    A query also makes the table when it starts; this command checks the options first. With --from-checkpoint, given
    once for each query of the group, the table gets the positions of a lost one; positions that it already has stay.
    """
    options = hub.options(lease_table, storage, blob_namespace)
    # The hub comes last: running queries read on, and a checkpoint must not seem to be beyond the hub's end.
    recovered = recover(from_checkpoint or [], replaces, options) if from_checkpoint or replaces else None
    current, states = hub_states(options)
    group = options.group
    lacks, identity = _LACKS if recovered else None, options.connection.identity
    with storage.open(lease_table, lacks=lacks, identity=identity, group=group) as store:
        exists, restored = store.exists(), ""
        if exists and (found := store.read()).group == group:  # `create` refuses a table of another group
            check_hub_of(found, current, lease_table)
        if recovered:
            check_same_hub(recovered, current)
            check_positions(recovered.progress.positions, states, "--from-checkpoint")
            restored = restore(store, checked_location(lease_table), group, recovered, states, current.created_ms)
        store.create(group)
    what = "is there" if exists else "was made"
    say(f"The lease table {lease_table} of {group} {what}; the hub has {len(states)} partitions.{restored}")
