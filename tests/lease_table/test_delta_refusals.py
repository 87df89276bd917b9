"""What the Delta store refuses, or cannot reach: one line that names the location and holds no secret."""

from __future__ import annotations

import base64
import json
import socket
import time
import traceback
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_ehbalance.errors import StoreError, StoreFormatError, StoreUnavailableError
from spark_ehbalance.lease_table.delta import DeltaStore
from spark_ehbalance.lease_table.delta.table_format import FORMAT, SCHEMA, description
from tests.lease_table.delta_tables import assert_one_line_with
from tests.lease_table.store_conformance import GROUP

# --- not a lease table of ours -----------------------------------------------------------------------------------


def of_format(number: int) -> str:
    return json.dumps({**json.loads(description(GROUP)), "ehbalance": number})


@pytest.mark.parametrize(
    ("note", "hint"),
    [
        (of_format(FORMAT + 1), f"format {FORMAT + 1}; .* knows format {FORMAT}: upgrade it"),
        (of_format(FORMAT - 1), f"format {FORMAT - 1}; .* knows format {FORMAT}: choose another leaseTable"),
        (None, "not a lease table"),
        ("somebody's table of leases", "not a lease table"),
        ('["ehbalance"]', "not a lease table"),
        ('{"ehbalance": "one"}', "not a lease table"),
    ],
)
def test_another_table_is_refused_and_left_alone(tmp_path: Path, note: str | None, hint: str) -> None:
    uri = str(tmp_path / "theirs")
    DeltaTable.create(uri, schema=pa.schema([("x", pa.int64())]) if note is None else SCHEMA, description=note)
    assert_refused(DeltaStore(uri), uri, StoreFormatError, hint)
    assert DeltaTable(uri).version() == 0


def assert_refused(store: DeltaStore, uri: str, kind: type[StoreError], hint: str | None = None) -> None:
    """It can neither be read nor created."""
    for action in (store.read, lambda: store.create(GROUP)):
        with pytest.raises(kind, match=hint) as error:
            action()
        assert_one_line_with(uri, error)
        assert "a-secret" not in str(error.value)


# --- not reachable -----------------------------------------------------------------------------------------------

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
def test_an_unreachable_location_is_an_unavailable_store(
    tmp_path: Path, location: str, options: dict[str, str]
) -> None:
    (tmp_path / "a-file").write_text("not a folder")
    uri = location.format(tmp=tmp_path)
    store = DeltaStore(uri, options)
    assert_refused(store, uri, StoreUnavailableError)
    assert "a-secret" not in repr(store)


def test_a_storage_that_never_answers_is_given_up_in_time() -> None:
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
            with pytest.raises(StoreUnavailableError, match="could not be read"):
                store.read()
            # delta-rs by itself would try for three minutes.
            assert time.monotonic() - began < 20


@pytest.mark.parametrize("name", ["timeout", "allow_http", "endpoint", "account_key"])
def test_a_secret_that_the_storage_does_not_understand_is_not_repeated(name: str) -> None:
    key = base64.b64encode(b"the-key-of-an-event-hub-01234567").decode() + "%"
    store = DeltaStore("az://container/leases", {"azure_storage_account_name": "account", name: key})
    for ask in (store.exists, store.read, store.history):
        with pytest.raises(StoreUnavailableError) as caught:
            ask()
        assert key.rstrip("=%") not in "".join(traceback.format_exception(caught.value))
