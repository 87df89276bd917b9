"""`ehbalance positions`: positions as JSON for `init`, `seek` and `startingPosition`."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from spark_ehbalance.errors import OptionError, StoreDamagedError, StoreError, StoreFormatError, StoreReplacedError
from spark_ehbalance.lease_table.blob.container import Container
from spark_ehbalance.lease_table.blob.locations import is_container, parse_location
from spark_ehbalance.lease_table.contract import REQUEST_TIMEOUT
from spark_ehbalance.ops.arguments import GroupName, StorageOptions, check_group_option
from spark_ehbalance.ops.common import echo, warn
from spark_ehbalance.query.options import checked_checkpoint, storage_options
from spark_ehbalance.query.positions import Logs, Positions, container_positions, lease_table_positions, query_positions
from spark_ehbalance.query.scala_checkpoint import UnusableError, may_be_scala_query, scala_query_positions
from spark_ehbalance.query.spark_checkpoint import CheckpointFolder, logs, opened
from spark_ehbalance.settings.secrets import redacted


def positions(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="A lease table, a container of the Azure SDKs' checkpoint store, or one or more checkpointLocations "
            "of a group's queries.",
        ),
    ],
    storage: StorageOptions,
    group: GroupName = None,
    event_hub_name: Annotated[
        str | None, typer.Option(help="The event hub, if the checkpoints contain several.")
    ] = None,
    scala_connector: Annotated[
        bool, typer.Option("--scala-connector", help="Read a checkpoint of azure-event-hubs-spark.")
    ] = False,
) -> None:
    """Print positions as JSON for `init` and `seek`.

    Stop the queries or consumers first. The command writes nothing and does not contact the event hub. Partitions in
    which events may be read twice are listed on standard error.
    """
    result = _read(sources, storage, group, event_hub_name, scala_connector=scala_connector)
    if event_hub_name is not None and event_hub_name.lower() != (found := result.hub.name).lower():
        option, value = "--event-hub-name", redacted(event_hub_name)
        raise OptionError("EHB_OPTION_INVALID", option=option, value=value, allowed=found)
    for remark in result.remarks:
        warn(remark)
    echo(result.to_json())


def _read(
    sources: list[str], storage: StorageOptions, group: str | None, hub: str | None, *, scala_connector: bool
) -> Positions:
    if len(sources) == 1 and is_container(sources[0]):
        return _read_container(sources[0], storage, group)
    check_group_option(group, *sources)
    checkpoints: dict[str, Logs] = {}
    for source in sources:
        location = checked_checkpoint(source, "SOURCE")
        remote = location if "://" in location else None
        options = storage_options(storage.by_name(), {}, remote, storage.identity())
        with opened(location, options) as folder:
            if scala_connector and len(sources) == 1:
                return _read_scala_checkpoint(folder, location, hub)
            if found := logs(folder):
                checkpoints[location] = found
            elif len(sources) == 1 and not folder.planned():
                return _read_lease_table(source, storage)
            else:
                raise OptionError("EHB_CHECKPOINT_UNUSABLE", location=location, reason=_problem(folder))
    return query_positions(checkpoints, hub)


def _read_container(text: str, storage: StorageOptions, group: str | None) -> Positions:
    location = parse_location(text)
    options = storage_options(storage.by_name(), {}, location, storage.identity())
    with contextlib.closing(Container(location, options, REQUEST_TIMEOUT)) as container:
        blobs = container.list("")
    return container_positions({name: blob.metadata for name, blob in blobs.items()}, group)


def _read_lease_table(text: str, storage: StorageOptions) -> Positions:
    with storage.open(text) as store:
        exists = False
        with contextlib.suppress(StoreFormatError):  # the folder contains other files
            exists = store.exists()
        if not exists:
            reason = "it is not a lease table, a container of the Azure SDKs' checkpoint store or a checkpointLocation"
            raise OptionError("EHB_CHECKPOINT_UNUSABLE", location=text, reason=reason)
        try:
            return lease_table_positions(store.read())
        except (StoreDamagedError, StoreReplacedError) as rejected:
            with contextlib.suppress(StoreError):
                found = lease_table_positions(store.read_rejected())
                warn(f"{rejected} These positions may be outdated, so events may be read again.")
                return found
            raise


def _read_scala_checkpoint(folder: CheckpointFolder, location: str, hub: str | None) -> Positions:
    try:
        return scala_query_positions(folder, hub)
    except UnusableError as error:
        raise OptionError("EHB_CHECKPOINT_UNUSABLE", location=location, reason=error) from None


def _problem(folder: CheckpointFolder) -> str:
    if not may_be_scala_query(folder):
        return "it is not a checkpoint of an ehbalance query"
    return (
        "it is a checkpoint of the Scala connector (allowed with --scala-connector) or of Spark's Kafka source, whose "
        "offsets cannot be used"
    )
