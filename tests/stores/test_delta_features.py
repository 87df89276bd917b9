"""Features of Delta that somebody else turns on: the table is used as before, or refused by name, and left alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from spark_ehbalance.errors import StoreDamagedError, StoreUnavailableError
from spark_ehbalance.leases.transitions import Heartbeat
from spark_ehbalance.stores.delta import DeltaStore
from tests.stores.delta_tables import assert_one_line_with, commit_by_bob, data_files
from tests.stores.store_conformance import ANN, committed


def alter(
    uri: str,
    writer: Iterable[str] = (),
    reader: Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
    columns: Callable[[int], Mapping[str, Any]] = lambda number: {},
    field: Mapping[str, Any] | None = None,
) -> None:
    """What another engine commits to turn features on, with table properties, with metadata of the columns by their
    numbers, or with one more column."""
    log = Path(uri, "_delta_log")
    actions = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    (metadata,) = (action["metaData"] for action in actions if "metaData" in action)
    schema = json.loads(metadata["schemaString"])
    for number, each in enumerate(schema["fields"]):
        each["metadata"] |= columns(number)
    schema["fields"] += [field] if field else []
    metadata["configuration"] |= properties or {}
    changed: list[dict[str, Any]] = [{"commitInfo": {"operation": "SET TBLPROPERTIES"}}]
    changed.append({"metaData": metadata | {"schemaString": json.dumps(schema)}})
    if writer:
        reads = {"minReaderVersion": 3, "readerFeatures": [*reader]} if reader else {"minReaderVersion": 1}
        changed.append({"protocol": {**reads, "minWriterVersion": 7, "writerFeatures": [*writer]}})
    newest = max(log.glob("*.json"))
    (log / f"{int(newest.stem) + 1:020}.json").write_text("\n".join(json.dumps(action) for action in changed))


def files(uri: str) -> set[Path]:
    return set(Path(uri).rglob("*"))


SUPPORTED: dict[str, dict[str, Any]] = {
    "change data feed": {"writer": ["changeDataFeed"], "properties": {"delta.enableChangeDataFeed": "true"}},
    "defaults": {"writer": ["allowColumnDefaults"], "columns": lambda _: {"CURRENT_DEFAULT": "null"}},
    "features that nothing uses": {
        "writer": ["appendOnly", "checkConstraints", "columnMapping", "inCommitTimestamp", "v2Checkpoint"],
        "reader": ["columnMapping", "v2Checkpoint"],
        "properties": {"delta.appendOnly": "false", "delta.columnMapping.mode": "none"},
    },
}


@pytest.mark.parametrize("what", SUPPORTED)
def test_a_table_with_features_that_change_nothing_for_it_is_written(
    uri: str, mine: DeltaStore, theirs: DeltaStore, what: str
) -> None:
    before = mine.read()
    alter(uri, **SUPPORTED[what])
    assert mine.read().leases == before.leases
    assert committed(mine, Heartbeat(by=ANN, at_ms=5)) == theirs.read()
    theirs.tidy()
    assert theirs.read().members == mine.read().members
    with DeltaStore(uri) as third:
        assert third.read() == mine.read()


def test_data_files_in_folders_of_the_table_are_read_and_replaced(uri: str, mine: DeltaStore) -> None:
    before = mine.read()
    (name,) = (file.name for file in data_files(uri) if file.name in DeltaTable(uri).file_uris()[0])
    Path(uri, "5L").mkdir()
    moved = Path(uri, name).rename(Path(uri, "5L", name))
    DeltaTable(uri).create_write_transaction(
        [AddAction(f"5L/{name}", moved.stat().st_size, {}, 1, data_change=True, stats="{}")],
        mode="overwrite",
        schema=DeltaTable(uri).schema(),
    )
    with DeltaStore(uri) as fresh:
        assert fresh.read().leases == mine.read().leases == before.leases
        assert committed(fresh, Heartbeat(by=ANN, at_ms=5)) == mine.read()
    assert len(DeltaTable(uri).file_uris()) == 1


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "append only": ({"properties": {"delta.appendOnly": "true"}}, "delta.appendOnly=true"),
    "a constraint": ({"properties": {"delta.constraints.young": "epoch < 9"}}, "the constraint young"),
    "an invariant": ({"columns": lambda _: {"delta.invariants": "{}"}}, "delta.invariants of column kind"),
    "a generated column": (
        {"writer": ["generatedColumns"], "columns": lambda _: {"delta.generationExpression": "upper(id)"}},
        "delta.generationExpression of column kind",
    ),
    "an identity column": (
        {"writer": ["identityColumns"], "columns": lambda _: {"delta.identity.start": 1}},
        "delta.identity.start of column kind",
    ),
    "a column that must not be null": (
        {"field": {"name": "must", "type": "long", "nullable": False, "metadata": {}}},
        "the column must, which must not be null",
    ),
    "row tracking": ({"writer": ["rowTracking", "domainMetadata"]}, "the feature rowTracking"),
    "clustering": ({"writer": ["clustering", "domainMetadata"]}, "the feature clustering"),
    "in-commit timestamps": (
        {"writer": ["inCommitTimestamp"], "properties": {"delta.enableInCommitTimestamps": "true"}},
        "delta.enableInCommitTimestamps=true",
    ),
    "a feature to come": ({"writer": ["timeTravel"]}, "the feature timeTravel"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_table_with_features_that_are_not_written_is_read_and_refused_by_name(
    uri: str, mine: DeltaStore, theirs: DeltaStore, what: str
) -> None:
    change, named = REFUSED[what]
    before = mine.read()
    alter(uri, **change)
    after, left = files(uri), mine.read()
    assert (left.leases, left.members) == (before.leases, before.members)
    for action in (
        lambda: mine.write(left, left),
        lambda: theirs.write(theirs.read(), left),
        mine.tidy,
        mine.maintain,
    ):
        with pytest.raises(StoreUnavailableError, match=named) as error:
            action()
        assert_one_line_with(uri, error)
    assert files(uri) == after


UNREADABLE: dict[str, tuple[dict[str, Any], str]] = {
    "deletion vectors": (
        {"writer": ["deletionVectors"], "reader": ["deletionVectors"]},
        "the feature deletionVectors",
    ),
    "column mapping": (
        {
            "writer": ["columnMapping"],
            "reader": ["columnMapping"],
            "columns": lambda number: {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"col-{number}",
            },
            "properties": {"delta.columnMapping.mode": "name"},
        },
        "the table property delta.columnMapping.mode=name",
    ),
    "type widening": ({"writer": ["typeWidening"], "reader": ["typeWidening"]}, "the feature typeWidening"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_table_that_only_a_whole_engine_reads_is_refused_by_name(uri: str, mine: DeltaStore, what: str) -> None:
    change, named = UNREADABLE[what]
    mine.read()
    commit_by_bob(uri)
    alter(uri, **change)
    after = files(uri)
    with DeltaStore(uri) as fresh:
        for action in (mine.read, fresh.read, fresh.tidy, fresh.maintain):
            with pytest.raises(StoreUnavailableError, match=named) as error:
                action()
            assert_one_line_with(uri, error)
            assert not isinstance(error.value, StoreDamagedError)
    assert files(uri) == after
