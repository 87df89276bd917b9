"""Which Delta tables are read and written here: plain ones. What a table's protocol and metadata demand beyond data
files is a feature that is named and refused. Source: the Delta protocol, "Requirements for Readers" and "for
Writers"."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set

#: Features that demand nothing of a writer who replaces all rows, unless a property or a column uses them.
_HARMLESS = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
    }
)

#: Features that do not change how our columns are read, unless a property uses them. delta-rs 1.6.6 adds `variantType`
#: whenever it sets a property of a table that has features.
_READ_AS_EVER = frozenset({"columnMapping", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "variantType"})

#: The highest version of the protocol for writers that is known here; from it on features are named one by one.
_WRITER_VERSION = 7

_MAPPED = ("name", "id")

_PROPERTIES = {
    "delta.appendOnly": ("true",),
    "delta.columnMapping.mode": _MAPPED,
    "delta.enableInCommitTimestamps": ("true",),
    "delta.enableRowTracking": ("true",),
}

#: Columns that have a value in each of our rows.
_FILLED = ("kind", "id")

_COLUMN_PROPERTIES = ("delta.invariants", "delta.generationExpression", "delta.identity.start")


def unsupported(what: str) -> str:
    """What an error says of `what` the table has."""
    return (
        f"somebody has changed it, and it has now {what}, which is not supported here. Undo that, or restore an "
        "earlier version"
    )


def unreadable(reader_features: Set[str], configuration: Mapping[str, str | None]) -> str:
    """Why the table's data files alone do not tell its rows, for an error; empty if they do."""
    if unknown := sorted(reader_features - _READ_AS_EVER):
        return f"the feature {unknown[0]} of Delta"
    mode = configuration.get("delta.columnMapping.mode") or ""
    return f"the table property delta.columnMapping.mode={mode}" if mode.lower() in _MAPPED else ""


def refused(
    writer_version: int,
    writer_features: Set[str],
    configuration: Mapping[str, str | None],
    schema: str,
    partitioned_by: Sequence[str],
) -> str:
    """Why the table is not written here, for an error; empty if it is. `schema` is the metadata's, as JSON."""
    if writer_version > _WRITER_VERSION:
        return f"version {writer_version} of Delta's protocol for writers"
    if unknown := sorted(set(writer_features) - _HARMLESS):
        return f"the feature {unknown[0]} of Delta"
    for name, value in sorted(configuration.items()):
        if (value or "").lower() in _PROPERTIES.get(name, ()):
            return f"the table property {name}={value}"
        if name.startswith("delta.constraints."):
            return f"the constraint {name.removeprefix('delta.constraints.')}"
    for field in json.loads(schema)["fields"]:
        if used := sorted({*_COLUMN_PROPERTIES} & {*field.get("metadata", {})}):
            return f"{used[0]} of column {field['name']}"
        if not field.get("nullable", True) and field["name"] not in _FILLED:
            return f"the column {field['name']}, which must not be null"
    return f"partitions by {', '.join(partitioned_by)}" if partitioned_by else ""
