"""All error conditions, with their messages and remedies. `scripts/write_tables.py` generates docs/errors.md from
them."""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter


@dataclass(frozen=True, slots=True)
class Condition:
    """`error` is the name of a class in `spark_ehbalance.errors`. `message` is a format string that is filled with the
    error's parameters. `remedy` is Markdown for docs/errors.md; it is empty if the message states what is allowed.
    """

    error: str
    message: str
    remedy: str = ""

    @property
    def parameters(self) -> frozenset[str]:
        """The names of the parameters in the message."""
        return frozenset(name for _, name, _, _ in Formatter().parse(self.message) if name)


_CREATE_FROM_POSITIONS = "[Create the table again from positions](operations.md#create-a-table-from-positions)."
_RETRIED = "None of the batch was written. Spark runs the batch again when the query restarts."

CONDITIONS = {
    # --- options and arguments ------------------------------------------------------------------------------------
    "EHB_OPTION_REQUIRED": Condition("OptionError", "{option} is required: {reason}."),
    "EHB_OPTION_INVALID": Condition("OptionError", "{option}={value} is invalid. Allowed: {allowed}."),
    "EHB_OPTION_UNKNOWN": Condition(
        "OptionError",
        "{option} is not an option of {where}{hint}.",
        "[Options](options.md) and [Writing](writing.md) list all options; [Migration](migration.md) lists the "
        "options of other sources, and the [changelog](../CHANGELOG.md) those that were removed.",
    ),
    "EHB_OPTION_NOT_APPLICABLE": Condition("OptionError", "{option} cannot be set here: {reason}."),
    "EHB_OPTIONS_CONFLICT": Condition("OptionError", "{options} cannot be combined: {reason}."),
    "EHB_CONNECTION_STRING_INVALID": Condition(
        "OptionError", "connectionString is invalid: {problem}. Allowed: {allowed}."
    ),
    "EHB_SECRET_EXPOSED": Condition(
        "OptionError",
        "{option} would expose a secret: {reason}. Allowed: {allowed}.",
        "Pass [a reference to the secret](security.md#secrets), and change the key if it was logged.",
    ),
    "EHB_SECRET_UNAVAILABLE": Condition("OptionError", "{option}={value} cannot be resolved: {reason}."),
    "EHB_CREDENTIAL_UNUSABLE": Condition(
        "OptionError",
        "{option}={value} cannot be used by Python {python} on {host}: {reason}.",
        "On the driver and the executors, install the module that defines the credential callable, or pass it with "
        "`--py-files`: see [Entra ID](security.md#entra-id).",
    ),
    "EHB_COLUMN_INVALID": Condition("OptionError", "Column {column}: {problem}. Allowed: {allowed}."),
    "EHB_PACKAGE_MISSING": Condition("OptionError", "{option} requires {package}: pip install '{install}'."),
    "EHB_FILE_INVALID": Condition("OptionError", "{file}: {problem}. Allowed: {allowed}."),
    "EHB_POSITION_INVALID": Condition(
        "OptionError", "The position of partition {partition} is invalid: {problem}. Allowed: {allowed}."
    ),
    "EHB_CHECKPOINT_UNUSABLE": Condition(
        "OptionError",
        "{location} is unusable: {reason}.",
        "Check the path. For a deleted lease table, [use the checkpoints]"
        "(operations.md#create-a-table-from-positions); for a deleted checkpoint, use the lease table.",
    ),
    "EHB_TWO_SOURCES": Condition(
        "OptionError",
        "Two sources of the query have leaseTable={lease_table}, so each event would reach only one of them.",
        "For a join, omit `leaseTable` and set a new `checkpointLocation`, so that each source reads all events. For a "
        "union, use one `load()`.",
    ),
    # --- Spark and packages ---------------------------------------------------------------------------------------
    "EHB_SPARK_MISSING": Condition(
        "SparkMissingError",
        "pyspark is not installed. Run pip install 'spark-ehbalance[spark]', or install 'spark-ehbalance[connect]' for "
        "a program that uses a Spark Connect server.",
    ),
    "EHB_SPARK_UNSUPPORTED": Condition("SparkMissingError", "pyspark {version} is too old. Supported: {supported}."),
    "EHB_FORMAT_UNUSABLE": Condition(
        "EhBalanceError",
        "Spark cannot use the ehbalance format: {reason}. Note: {python_in_use}.",
        "Install the package with its dependencies for [the Python that Spark starts](platforms.md#three-pythons), or "
        "pass it with `--archives`, `--py-files` (a wheel renamed to .zip) or, with Spark Connect, "
        "`spark.addArtifacts`.",
    ),
    "EHB_NOT_IMPORTABLE": Condition(
        "InstallationError",
        "The ehbalance data source cannot start in {python}: {reason}.",
        "Install the package for [the Python that Spark starts](platforms.md#three-pythons).",
    ),
    "EHB_CLIENT_UNSUPPORTED": Condition(
        "ClientVersionError",
        "azure-eventhub {version} on {host} is not supported: {reason}. Tested: {tested}.",
        "Install [a tested version](platforms.md#versions) on the driver and on every executor.",
    ),
    "EHB_DELTA_UNSUPPORTED": Condition(
        "EhBalanceError",
        "No version of Delta Lake supports Spark {version} yet. Supported: {supported}.",
        "Use [a Spark version that Delta Lake supports](platforms.md#delta-lake).",
    ),
    # --- the event hub --------------------------------------------------------------------------------------------
    "EHB_HUB_UNREACHABLE": Condition(
        "HubUnavailableError",
        "{what}: {reason}.",
        "Check the host name, the firewall (port 5671, or 443 with `transportType=AmqpOverWebsocket`) and "
        "[the network options](security.md#networks). If the namespace is throttled, add throughput units. If the "
        "reason names an epoch receiver, set another `consumerGroup`.",
    ),
    "EHB_NETWORK_INVALID": Condition(
        "HubUnavailableError",
        "Cannot connect to {target}: {problem}.",
        "Correct the named option or the machine's settings: see [Networks](security.md#networks).",
    ),
    "EHB_CREDENTIALS_REFUSED": Condition(
        "HubUnavailableError",
        "{hub} refused the credentials: {reason}. Check {check}.",
        "See [Keys](security.md#secrets), [Entra ID](security.md#entra-id) and [roles](security.md#permissions).",
    ),
    "EHB_TOKEN_UNAVAILABLE": Condition(
        "EhBalanceError",
        "No token could be fetched: {reason}.",
        "The credential failed: see [Entra ID](security.md#entra-id).",
    ),
    "EHB_HUB_NOT_FOUND": Condition(
        "MissingError",
        "{what} {problem}.",
        "Check `eventHubName`, `consumerGroup` and the namespace. If they are correct, create the missing resource, or "
        "enable the hub. If the hub was recreated with fewer partitions, see "
        "[`EHB_HUB_RECREATED`](#ehb_hub_recreated).",
    ),
    "EHB_PARTITION_SILENT": Condition(
        "HubUnavailableError",
        "Partition {partition}: no event arrived for receiverTimeout={timeout:g} s ({reason}). The batch fails; "
        "restart the query to run it again.",
        "See [A partition stalls](operations.md#a-partition-stalls). If the error recurs, another reader may be "
        "using an owner level, or the network may be dropping data. A compacted hub needs "
        "[`compacted`](operations.md#compacted-hubs). With this option, if the last events of a batch have been "
        "compacted away, the batch finishes only when another event is sent to the partition.",
    ),
    "EHB_SEND_TIMEOUT": Condition(
        "HubUnavailableError",
        "{where} accepted no batch for sendTimeout={timeout:g} s: {reason}. If Spark retries the task, the events that "
        "the task already sent are duplicated.",
        "See [`EHB_HUB_UNREACHABLE`](#ehb_hub_unreachable).",
    ),
    "EHB_EVENTS_LOST": Condition(
        "DataLossError",
        "Partition {partition}: events from sequence number {position} on are gone: {reason}.",
        "If the events aged out, the query was stopped for longer than the hub retains events, or it is too slow. If "
        "the hub was recreated, see [`EHB_HUB_RECREATED`](#ehb_hub_recreated); if another region was promoted to "
        "primary, see [`EHB_POSITION_UNKNOWN`](#ehb_position_unknown). With `failOnDataLoss=false`, the query "
        "continues from the first retained event.",
    ),
    "EHB_EVENT_MALFORMED": Condition(
        "MalformedEventError",
        "Partition {partition}: {problem}.",
        "Set [`onMalformed`](options.md#events-that-cannot-be-read). If the event has no sequence number, skip it with "
        "[`ehbalance seek`](commands.md#operator-commands).",
    ),
    "EHB_ROW_UNSENDABLE": Condition(
        "UnsendableEventError",
        "{problem}. This row was not sent; other rows of the task may have been sent.",
        "Correct the row, or set `onUnsendable=skip`: see "
        "[rows that cannot be sent](writing.md#rows-that-cannot-be-sent).",
    ),
    "EHB_FOREIGN_READER": Condition(
        "ForeignReaderError",
        "Partition {partition} is being read with owner level {level} by a reader outside this group; this query's "
        "owner level is {own_level}.",
        "Stop that reader, give it another consumer group, or let it share the lease table.",
    ),
    # --- checkpoint, lease table and hub do not belong together ----------------------------------------------------
    "EHB_CHECKPOINT_STALE": Condition(
        "DataLossError",
        "The checkpoint ends with batch {batch}, but another process of this query ({owner} on {host}, last active "
        "{at}) began batch {begun}.",
        "The checkpoint was restored, it is a copy, or another process uses it. If the query has meanwhile been run "
        "elsewhere, continue it there. Otherwise, set a new `checkpointLocation`: the query then continues from the "
        "lease table's positions. If the sink was restored too, first [seek](commands.md#operator-commands) to the "
        "position after the last event in the sink.",
    ),
    "EHB_HUB_RECREATED": Condition(
        "DataLossError",
        "The {part} contains positions of {known}, but the query now reads {found}.",
        "Set a new `checkpointLocation`. Also set a new `leaseTable` and `startingPosition=earliest`, or, unless the "
        "hub now has fewer partitions, keep the table and run `ehbalance seek LEASE_TABLE --all --to earliest`.",
    ),
    "EHB_LEASE_TABLE_CHANGED": Condition(
        "DataLossError",
        "The checkpoint was written with {known}, but the query now uses {found}.",
        "Restore the previous value of `leaseTable`. If you moved the table on purpose, set a new "
        "`checkpointLocation`. If you added `leaseTable` to the query, [create the table from the "
        "checkpoint](operations.md#create-a-table-from-positions).",
    ),
    "EHB_LEASE_TABLE_LOST": Condition(
        "DataLossError",
        "The checkpoint was written with the lease table at {location} (id {id}), which is now missing or empty.",
        "Restore the table, or [create it from the checkpoints](operations.md#create-a-table-from-positions).",
    ),
    "EHB_LEASE_TABLE_REPLACED": Condition(
        "DataLossError",
        "The lease table has id {found}; the query used id {known}.",
        "If you recreated the table on purpose, start the query with a new `checkpointLocation`. Otherwise: "
        + _CREATE_FROM_POSITIONS,
    ),
    "EHB_LEASE_TABLE_STALE": Condition(
        "DataLossError",
        "The lease table was rolled back or edited: its {what} is {found}, but was {known}.",
        _CREATE_FROM_POSITIONS,
    ),
    "EHB_POSITION_UNKNOWN": Condition(
        "DataLossError",
        "The event hub no longer has events that the query has read: sequence numbers {events}.",
        "[A promotion to another region](operations.md#geo-replicated-hubs) lost them. Stop the queries, run "
        "`ehbalance seek LEASE_TABLE --all --to TIME` with a time shortly before the promotion, and start the queries "
        "again. Without a lease table, set a new `checkpointLocation`, and set `startingPosition` to that time.",
    ),
    "EHB_SINK_AHEAD": Condition(
        "DataLossError",
        "{sink} has batches up to number {in_sink}, but the query's checkpoint {checkpoint} {ends}. Batches up to "
        "number {in_sink} would be skipped silently. Nothing was read.",
        "The checkpoint is new, was rolled back, or belongs to another output. Restore the right checkpoint, or set a "
        "new `checkpointLocation` (for the file sink, a new output folder): see "
        "[batch numbers](sharing.md#sinks-that-skip-known-batch-numbers).",
    ),
    "EHB_CHECKPOINT_FOREIGN": Condition(
        "EhBalanceError", "The query's checkpoint {problem}.", "Set a new `checkpointLocation`, or upgrade the package."
    ),
    # --- the lease table ------------------------------------------------------------------------------------------
    "EHB_LEASE_TABLE_UNAVAILABLE": Condition(
        "StoreUnavailableError",
        "{what} could not be {action}: {reason}.",
        "Check [the storage and its credentials](security.md#the-lease-tables-storage). A running query keeps reading "
        "the partitions that it owns. If the table cannot be opened although the storage works, its log is damaged: "
        + _CREATE_FROM_POSITIONS[0].lower()
        + _CREATE_FROM_POSITIONS[1:],
    ),
    "EHB_LEASE_TABLE_MISSING": Condition(
        "StoreUnavailableError",
        "There is no lease table at {location}.",
        "Check the path. If queries have used the table, restore it, or [create it from the "
        "checkpoints](operations.md#create-a-table-from-positions). Otherwise, run `ehbalance init`.",
    ),
    "EHB_LEASE_TABLE_CONTENDED": Condition(
        "StoreUnavailableError",
        "The group could not be joined within {timeout:g} s: the lease table at {location} is slow or contended.",
        "The storage is too slow, or [too many members are committing to the table](sizing.md#lease-duration).",
    ),
    "EHB_LEASE_TABLE_DAMAGED": Condition(
        "StoreDamagedError",
        "The lease table at {location} is damaged: {problem}. Running queries keep reading the partitions that they "
        "own, but exactly-once writes fail.",
        "Undo a changed property with `ALTER TABLE … SET TBLPROPERTIES` (or `UNSET`). Otherwise: "
        + _CREATE_FROM_POSITIONS,
    ),
    "EHB_LEASE_TABLE_ROLLED_BACK": Condition(
        "StoreReplacedError",
        "The lease table at {location} was replaced, rolled back or edited by another program: {problem}.",
        _CREATE_FROM_POSITIONS,
    ),
    "EHB_LEASE_TABLE_FOREIGN": Condition(
        "StoreFormatError",
        "{location} cannot be used as a lease table: {problem}. Nothing was changed there.",
        "Choose another `leaseTable`: each consumer group of a hub needs its own table, in a folder without other "
        "files. A table with a newer format needs a newer version of this package. For a container with several "
        "groups, select one with `--group`. A checkpoint blob must contain both an offset and a sequence number: "
        "write both, or delete the blob.",
    ),
    "EHB_LEASE_TABLE_EXISTS": Condition(
        "EhBalanceError",
        "There is already a lease table at {location}. Nothing was written.",
        "To change the positions of an existing table, run `ehbalance seek LEASE_TABLE --positions FILE`.",
    ),
    "EHB_COMMIT_CONFLICT": Condition(
        "ConflictError",
        "Another writer committed version {version} of {location}.",
        "The package retries after this error. If you see it, report it as a bug.",
    ),
    "EHB_FENCED": Condition(
        "FencedError",
        "A newer process on {host} has started under the name {owner}, so this process stops.",
        "Two processes use the same checkpoint, a copy of it, or the same `ownerId`; the newer process continues. If "
        "Spark ended the newer process too (`CONCURRENT_STREAM_LOG_UPDATE`), start it again. Give each query its own "
        "checkpoint and `ownerId`.",
    ),
    # --- exactly once ---------------------------------------------------------------------------------------------
    "EHB_TARGET_UNSUPPORTED": Condition(
        "TargetError",
        "Target {target} cannot be written exactly once: {reason}.",
        "Nothing was written. See [what a target needs](exactly-once.md).",
    ),
    "EHB_TARGET_CALL_INVALID": Condition(
        "TargetError", "{function}: {problem}. Allowed: {allowed}.", "See [Exactly once](exactly-once.md)."
    ),
    "EHB_TARGET_SCHEMA_MISMATCH": Condition(
        "TargetError",
        "Target {target}: column {column} {problem}.",
        "Drop the column, cast it if that loses no values, or add it with `write_once(mergeSchema=True)`.",
    ),
    "EHB_TARGET_ROWS_INVALID": Condition(
        "TargetError",
        "{problem}.",
        "You may change or drop rows, or produce several rows per event. But each row must keep the `partition` and "
        "`sequenceNumber` of its event, and be written in the batch that reads the event: no stateful operator "
        "(aggregation, stream-stream join) may return it in a later batch. With `onMalformed=keep`, filter out events "
        "that have no sequence number. `merge` needs one row per event: use `dropDuplicates(['partition', "
        "'sequenceNumber'])`. If the table contains an event twice, delete all but one of its rows, or set "
        "`update=False`.",
    ),
    "EHB_TARGET_AHEAD": Condition(
        "TargetError",
        "Target {target} contains events of {source} in partition {partition} up to sequence number {known}, but the "
        "hub does not have that event.",
        "The hub was recreated or promoted: use a new table, or another `source`.",
    ),
    "EHB_TARGET_HUB_RECREATED": Condition(
        "TargetError",
        "Target {target} was written from an earlier instance of {source}.",
        "The hub was recreated: use a new table, or another `source`.",
    ),
    "EHB_TARGET_BATCH_EXISTS": Condition(
        "TargetError",
        "Target {target} already has batch {batch} of this query. Nothing was written.",
        "A second DataFrame of the same batch would be skipped: write the union of the two, or give the second one a "
        "different `source`. If the query previously used Delta's own sink, run the query once more with "
        "that sink, stop it with `spark_ehbalance.stop`, and only then switch sinks. If `foreachBatch` appends with "
        "the query's id as `txnAppId`, use another id there. If the checkpoint was rolled back, set a new "
        "`checkpointLocation`.",
    ),
    "EHB_TARGET_CONTENDED": Condition(
        "TargetError",
        "The target rejected {count} attempts to commit the batch. Last rejection: {reason}.",
        "Other writers change the table constantly, or this query cannot write to it. " + _RETRIED,
    ),
    "EHB_TARGET_LOCKED": Condition(
        "TargetError",
        "{file} could not be locked: {reason}.",
        "Every writer of the table must be able to write to this file and its folder. `fuser FILE` shows the process "
        "that holds the lock: resume or stop it. " + _RETRIED,
    ),
    "EHB_TARGET_BATCH_UNKNOWN": Condition(
        "TargetError",
        "The offset ranges that the batch reads are unknown: {reason}.",
        "Fix the cause, if the message names one, and restart the query. " + _RETRIED,
    ),
    "EHB_TARGET_STATE_AHEAD": Condition(
        "TargetError",
        "The query lost the leases of partitions {partitions} during the batch, but the query's streaming state "
        "already contains their events.",
        "Restart the query: Spark runs the batch again from the previous state.",
    ),
    "EHB_SESSION_SKIPS_WRITES": Condition(
        "TargetError",
        "The Spark session sets {setting}, so Delta would skip writes.",
        "Unset it with `spark.conf.unset` before the query starts, and set `txnAppId` and `txnVersion` as options of "
        "your own writes.",
    ),
    # --- commands and the planner ---------------------------------------------------------------------------------
    "EHB_COMMAND_REJECTED": Condition("EhBalanceError", "The command was rejected: {reason}."),
    "EHB_PORT_UNAVAILABLE": Condition("EhBalanceError", "{address} cannot be used: {reason}."),
    "EHB_FILE_NOT_WRITTEN": Condition("EhBalanceError", "{file} could not be written: {reason}."),
    "EHB_PLANNER_FAILED": Condition(
        "EhBalanceError",
        "The query's planner failed: {reason}. Other queries claim its partitions after the lease duration.",
        "This is a bug in this package: report it with the driver's log.",
    ),
    "EHB_DRIVER_LOST": Condition(
        "EhBalanceError",
        "Spark's JVM ended while its queries were running: {reason}.",
        "See the JVM's log, and the kernel's log for an out-of-memory kill. Start the program again.",
    ),
    "EHB_CONTROL_MESSAGE_INVALID": Condition("EhBalanceError", "Invalid control message: {problem}."),
    "EHB_CALL_INVALID": Condition("EhBalanceError", "{function}: {problem}."),
}
