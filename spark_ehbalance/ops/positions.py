"""`ehbalance positions`: where reading continues, as JSON that `init`, `seek` and `startingPosition` take."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from spark_ehbalance.errors import OptionError
from spark_ehbalance.lease_table.blob.container import Container
from spark_ehbalance.lease_table.blob.locations import is_container, parse_location
from spark_ehbalance.lease_table.contract import REQUEST_TIMEOUT
from spark_ehbalance.ops.arguments import GroupName, StorageOptions, pairs
from spark_ehbalance.ops.common import say, warn
from spark_ehbalance.query.options import checked_checkpoint, storage_options
from spark_ehbalance.query.positions import Logs, Positions, of_container, of_lease_table, of_queries
from spark_ehbalance.query.scala_checkpoint import UnusableError, has_scala_form, of_scala_query
from spark_ehbalance.query.spark_checkpoint import CheckpointFolder, logs, opened


def positions(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="A lease table, a container of the Azure SDKs' checkpoint store, or a checkpointLocation. Several: "
            "the checkpoints of a group's queries.",
        ),
    ],
    storage: StorageOptions,
    group: GroupName = None,
    event_hub_name: Annotated[
        str | None, typer.Option(help="Which event hub, in checkpoints of a query that reads several.")
    ] = None,
    scala_connector: Annotated[
        bool, typer.Option("--scala-connector", help="The checkpoint is of azure-event-hubs-spark.")
    ] = False,
) -> None:
    """Print the positions at which reading continues, for `init --positions` and `seek --positions`.

    Stop the queries or consumers first. Nothing is written, and the event hub is not needed. Positions at which events
    may be read twice are listed on standard error.
    """
    found = _read(sources, storage, group, event_hub_name, scala_connector=scala_connector)
    for remark in found.remarks:
        warn(remark)
    say(found.to_json())


def _read(
    sources: list[str], storage: StorageOptions, group: str | None, hub: str | None, *, scala_connector: bool
) -> Positions:
    if len(sources) == 1 and is_container(sources[0]):
        return _of_container(sources[0], storage, group)
    checkpoints: dict[str, Logs] = {}
    for source in sources:
        location = checked_checkpoint(source, "SOURCE")
        remote = location if "://" in location else None
        options = storage_options(pairs(storage.storage_option), {}, remote, storage.identity())
        with opened(location, options) as folder:
            if scala_connector and len(sources) == 1:
                return _of_scala(folder, location, hub)
            if found := logs(folder):
                checkpoints[location] = found
            elif len(sources) == 1 and not folder.planned():
                return _of_lease_table(source, storage)
            else:
                raise OptionError(f"{location} is no checkpoint of an ehbalance query{_instead(folder)}")
    return of_queries(checkpoints, hub)


def _of_container(text: str, storage: StorageOptions, group: str | None) -> Positions:
    location = parse_location(text)
    options = storage_options(pairs(storage.storage_option), {}, location, storage.identity())
    with contextlib.closing(Container(location, options, REQUEST_TIMEOUT)) as container:
        blobs = container.list("")
    return of_container({name: each.metadata for name, each in blobs.items()}, group)


def _of_lease_table(text: str, storage: StorageOptions) -> Positions:
    with storage.open(text) as store:
        if not store.exists():
            raise OptionError(
                f"{text} is neither a lease table, nor a container of the Azure SDKs' checkpoint store, nor the "
                "checkpointLocation of a query"
            )
        return of_lease_table(store.read())


def _of_scala(folder: CheckpointFolder, location: str, hub: str | None) -> Positions:
    try:
        if not folder.planned():
            raise UnusableError("it has no offsets/N")
        return of_scala_query(folder, hub)
    except UnusableError as problem:
        raise OptionError(f"{location} cannot be used: {problem}") from None


def _instead(folder: CheckpointFolder) -> str:
    if not has_scala_form(folder):
        return ""
    return (
        ". It is one of the Scala connector, for which give --scala-connector, or of Spark's Kafka source, whose files "
        "look the same and whose offsets are of no use"
    )
