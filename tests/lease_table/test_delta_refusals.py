"""Rejected or unreachable locations: the error is one line that contains the location but no secret."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_ehbalance.errors import StoreFormatError, StoreUnavailableError
from spark_ehbalance.lease_table.delta.store import DeltaStore
from spark_ehbalance.lease_table.delta.table_format import FORMAT, SCHEMA
from spark_ehbalance.lease_table.delta.table_format import description as description_of
from tests.lease_table.delta_tables import assert_one_line_with
from tests.lease_table.store_conformance import GROUP
from tests.raising import raises

# --- foreign tables ----------------------------------------------------------------------------------------------


def of_format(number: int) -> str:
    return json.dumps({**json.loads(description_of(GROUP)), "ehbalance": number})


OTHER_PROGRAM = "it is a Delta table of another program"


@pytest.mark.parametrize(
    ("description", "problem"),
    [
        (of_format(FORMAT + 1), f"it has format {FORMAT + 1}, .* supports format {FORMAT}"),
        (of_format(FORMAT - 1), f"it has format {FORMAT - 1}, .* supports format {FORMAT}"),
        (None, OTHER_PROGRAM),
        ("somebody's table of leases", OTHER_PROGRAM),
        ('["ehbalance"]', OTHER_PROGRAM),
        ('{"ehbalance": "one"}', OTHER_PROGRAM),
    ],
)
def test_foreign_table_is_rejected_and_unchanged(tmp_path: Path, description: str | None, problem: str) -> None:
    uri = str(tmp_path / "theirs")
    schema = pa.schema([("x", pa.int64())]) if description is None else SCHEMA
    DeltaTable.create(uri, schema=schema, description=description)
    for action in actions(DeltaStore(uri)):
        with raises(StoreFormatError, "EHB_LEASE_TABLE_FOREIGN", problem=re.compile(problem)) as error:
            action()
        assert_one_line_with(uri, error)
    assert DeltaTable(uri).version() == 0


def actions(store: DeltaStore) -> tuple[Callable[[], object], ...]:
    return store.read, lambda: store.create(GROUP)


# --- unreachable locations ---------------------------------------------------------------------------------------

DEAD_S3 = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "a-secret",
    "AWS_REGION": "nowhere",
    "max_retries": "0",
    "retry_timeout": "1s",
}


@pytest.mark.parametrize(
    ("location", "options"),
    [("{tmp}/a-file/leases", {}), ("s3://bucket/leases", DEAD_S3), ("nonsense://host/leases", {})],
    ids=["below a file", "dead endpoint", "unknown scheme"],
)
def test_unreachable_location_is_an_unavailable_store(tmp_path: Path, location: str, options: dict[str, str]) -> None:
    (tmp_path / "a-file").write_text("not a folder")
    uri = location.format(tmp=tmp_path)
    store = DeltaStore(uri, options)
    for action in actions(store):
        with pytest.raises(StoreUnavailableError) as error:
            action()
        assert_one_line_with(uri, error)
        assert "a-secret" not in str(error.value)
    assert "a-secret" not in repr(store)


def test_table_below_an_unreadable_folder_is_not_missing(tmp_path: Path) -> None:
    (parent := tmp_path / "parent").mkdir()
    store = DeltaStore(str(parent / "leases"))
    store.create(GROUP)
    parent.chmod(0)
    user = os.geteuid()
    try:
        os.seteuid(user or 65534)  # root may read every folder
        for read in (DeltaStore(str(parent / "leases")).read, store.read_rejected):
            with raises(StoreUnavailableError, "EHB_LEASE_TABLE_UNAVAILABLE", reason=re.compile("Permission denied")):
                read()
    finally:
        os.seteuid(user)
        parent.chmod(0o700)


def test_unresponsive_storage_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/account"
        options = {
            "azure_storage_account_name": "account",
            "azure_storage_account_key": base64.b64encode(b"secret").decode(),
            "azure_storage_endpoint": endpoint,
            "azure_allow_http": "true",
        }
        with DeltaStore("az://container/leases", options, patience=0.5) as store:
            began = time.monotonic()
            with raises(StoreUnavailableError, "EHB_LEASE_TABLE_UNAVAILABLE", action="read"):
                store.read()
            # delta-rs alone would retry for three minutes.
            assert time.monotonic() - began < 20


@pytest.mark.parametrize("name", ["timeout", "allow_http", "endpoint", "account_key"])
def test_invalid_secret_is_not_repeated(name: str) -> None:
    key = base64.b64encode(b"the-key-of-an-event-hub-01234567").decode() + "%"
    store = DeltaStore("az://container/leases", {"azure_storage_account_name": "account", name: key})
    for request in (store.exists, store.read, store.history):
        with pytest.raises(StoreUnavailableError) as caught:
            request()
        assert key.rstrip("=%") not in "".join(traceback.format_exception(caught.value))
