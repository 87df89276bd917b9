"""Foreign files with names that engines and people commonly use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spark_ehbalance.group.model import Lease
from spark_ehbalance.group.position import Position
from spark_ehbalance.group.snapshot import Snapshot
from spark_ehbalance.lease_table.delta.folder import Folder
from spark_ehbalance.lease_table.delta.table_format import encode, to_table
from tests.lease_table.store_conformance import GROUP

OLD, NEW = "0dab2fc0-bfdc-4e57-aa87-6417aec08108", "1dab2fc0-bfdc-4e57-aa87-6417aec08109"

#: Writer → file names; `{id}` is a random id.
NAMES = {
    "Spark": "part-00000-{id}-c000.snappy.parquet",
    "a task of Spark": "_temporary/0/task_{id}/part-00000-{id}-c000.snappy.parquet",
    "Spark's end": "_SUCCESS",
    "a query's offsets": "checkpoint/offsets/12",
    "Hadoop's checksum of the log": "_delta_log/.00000000000000000003.json.crc",
    "delta-rs": "{id}.parquet",
    "Delta's change data": "_change_data/cdc-00000-{id}.c000.snappy.parquet",
    "Delta kernel's log": "_delta_log/_staged_commits/00000000000000000003.{id}.json",
    "Delta kernel's sidecar": "_delta_log/_sidecars/{id}.parquet",
    "a log file not yet renamed": "_delta_log/_commit_{id}.json.tmp",
    "Iceberg": "data/00000-0-{id}-00001.parquet",
    "Hive": "000000_0",
    "a hidden file": ".hidden-{id}",
    "a text": "notes.txt",
    "a text in the log": "_delta_log/notes.json",
    "a table of Parquet": "flights.parquet",
    "a report": "report.csv#1",
    "a copy": "copy of lease-{id}.parquet",
    "leases as a sheet": "lease-{id}.csv",
    "leases in a folder": "backup/lease-{id}.parquet",
}


def put(folder: Folder, below: str, id: str) -> dict[str, bytes]:
    """Write files with all these names into the folder `below`; returns path → content. One is a later copy of a lease
    table's file."""
    paths = {f"{below}{name.format(id=id)}": f"{who} {id}".encode() for who, name in NAMES.items()}
    later = {"0": Lease("0", "eve", 999_999, 1, checkpoint=Position(999_999))}
    paths[f"{below}{id}.parquet"] = encode(to_table(replace(Snapshot(GROUP), leases=later)))
    for path, content in paths.items():
        write(folder, path, content)
    return paths


def write(folder: Folder, path: str, content: bytes) -> None:
    """Write a file, even under names that obstore rejects on a disk."""
    if folder.is_local:
        file = Path(folder.uri, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    else:
        folder.write(path, content)


def contents(folder: Folder, paths: dict[str, bytes]) -> dict[str, bytes]:
    """The current contents of `paths`."""
    found = dict[str, bytes]()
    for path in paths:
        try:
            found[path] = Path(folder.uri, path).read_bytes() if folder.is_local else folder.read(path)
        except FileNotFoundError:
            continue
    return found
