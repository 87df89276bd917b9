"""Names and metadata of blobs as the SDKs write them."""

from __future__ import annotations

import pytest

from spark_ehbalance.group.identity import Group
from spark_ehbalance.group.position import Position
from spark_ehbalance.lease_table.blob.layout import (
    BlobKind,
    StoredCheckpoint,
    blob_group,
    blob_name,
    checkpoint,
    checkpoint_metadata,
    epoch,
    group_prefix,
    groups,
    owner,
    ownership_metadata,
    parse_name,
)

GROUP = Group.from_names("NS.servicebus.windows.net", "Hub", "$Default")


@pytest.mark.parametrize("group", [GROUP, Group("NS.servicebus.windows.net", "Hub", "$Default")])
@pytest.mark.parametrize("kind", BlobKind)
def test_blob_names_match_the_sdks_in_lower_case_and_parse_back(group: Group, kind: BlobKind) -> None:
    name = blob_name(group, kind, "A")
    assert name == f"ns.servicebus.windows.net/hub/$default/{kind.value}/a"
    assert parse_name(GROUP, name) == (kind, "a")


@pytest.mark.parametrize(
    "rest", ["", "ownership", "ownership/", "ownership/0/1", "other/0", "0", "Ownership/0", "checkpoints/0"]
)
def test_foreign_blobs_are_ignored(rest: str) -> None:
    assert parse_name(GROUP, group_prefix(GROUP) + rest) is None
    assert parse_name(GROUP, group_prefix(GROUP).replace("$default", "$default2") + rest) is None
    assert parse_name(GROUP, rest) is None


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"ownerid": "ann"}, ("ann", None)),
        ({"OwnerId": "ann"}, ("ann", None)),
        ({"OWNERID": " ann ", "other": "x"}, ("ann", None)),
        (None, (None, None)),
        ({"other": "x"}, (None, None)),
        ({"ownerid": "", "epoch": ""}, (None, None)),
        ({"ownerid": "ann", "epoch": "-1"}, ("ann", None)),
        ({"ownerid": "ann", "epoch": "9" * 19}, ("ann", None)),
        ({"ownerid": "", "epoch": "1"}, (None, 1)),
    ],
)
def test_ownerships_of_all_sdks_are_read(
    metadata: dict[str, str] | None, expected: tuple[str | None, int | None]
) -> None:
    assert (owner(metadata), epoch(metadata)) == expected


@pytest.mark.parametrize("name", ["ann", None])
def test_written_ownership_is_read_back(name: str | None) -> None:
    written = ownership_metadata(name, 3)
    assert written == {"ownerid": name or "", "epoch": "3"}
    assert (owner(written), epoch(written)) == (name, 3)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"offset": "1000", "sequencenumber": "7"}, StoredCheckpoint(7, "1000")),
        ({"Offset": "1000", "SequenceNumber": "7"}, StoredCheckpoint(7, "1000")),
        ({"sequencenumber": "7"}, StoredCheckpoint(7)),  # Java
        ({"sequencenumber": "7", "offset": ""}, StoredCheckpoint(7)),
        ({"offset": "1000"}, StoredCheckpoint(None, "1000")),
        ({"offset": "1000", "sequencenumber": ""}, StoredCheckpoint(None, "1000")),
        ({"offset": "geo:1:2", "sequencenumber": "None"}, StoredCheckpoint(None, "geo:1:2")),
        ({"offset": "", "sequencenumber": "-1"}, StoredCheckpoint(-1)),
        ({"offset": "", "sequencenumber": ""}, StoredCheckpoint()),
        ({"offset": "None", "sequencenumber": "7"}, StoredCheckpoint(7)),  # Python
        ({"offset": "no offset", "sequencenumber": "7"}, StoredCheckpoint(7)),  # .NET
        ({"offset": "1000", "sequencenumber": str(-(2**63))}, StoredCheckpoint(None, "1000")),  # .NET
        ({}, StoredCheckpoint()),
        (None, StoredCheckpoint()),
    ],
)
def test_checkpoints_of_all_sdks_are_read(metadata: dict[str, str] | None, expected: StoredCheckpoint) -> None:
    found = checkpoint(metadata)
    number = expected.sequence_number
    assert found == expected
    assert found.position == (None if number is None else Position(number, expected.offset))


@pytest.mark.parametrize("position", [Position(7, "1000"), Position(7), Position(-1)])
def test_both_keys_are_written_and_read_back(position: Position) -> None:
    metadata = checkpoint_metadata(position)
    assert metadata.keys() == {"offset", "sequencenumber"}
    found = checkpoint(metadata).position
    assert found is not None
    assert found.sequence_number == position.sequence_number
    assert found.offset == (position.offset or ("-1" if position.sequence_number < 0 else None))


def test_groups_in_a_container_are_listed() -> None:
    other = Group.from_names("ns2", "hub", "group")
    names = [blob_name(GROUP, BlobKind.OWNERSHIP, "0"), blob_name(GROUP, BlobKind.CHECKPOINT, "1"), "a/b/c/d/e", "x"]
    assert groups([*names, blob_name(other, BlobKind.CHECKPOINT, "0")]) == {GROUP, other}


def test_namespace_in_blob_names_is_detected() -> None:
    """Without the port in Java, .NET and JavaScript; with it in Python and Go."""
    assert blob_group(Group("localhost:5672", "hub", "$default"), None) == Group("localhost", "hub", "$default")
    assert blob_group(GROUP, None) == GROUP
    assert blob_group(GROUP, "localhost:5672") == Group("localhost:5672", GROUP.hub, GROUP.consumer_group)
