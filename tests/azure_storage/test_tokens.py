"""Tokens that expire while a table is in use."""

from __future__ import annotations

import pytest

from chaos.storage.azurite import sas_options
from spark_ehbalance.errors import StoreError, StoreUnavailableError
from spark_ehbalance.lease_table.delta import DeltaStore
from tests.azure_storage.tables import RENEWAL, Table
from tests.lease_table.delta_tables import assert_one_line_with
from tests.lease_table.store_conformance import committed
from tests.waiting import wait_until


def refusal(store: DeltaStore) -> pytest.ExceptionInfo[StoreError] | None:
    """The error of a look, if there is one."""
    try:
        store.read()
    except StoreUnavailableError as error:
        return pytest.ExceptionInfo.from_exception(error)
    return None


def test_an_expired_token_is_an_error_without_the_token_and_a_new_one_goes_on(table: Table) -> None:
    options, before = sas_options(table.proxy, table.container, seconds=3.0), table.renewals()
    with DeltaStore(table.location, options) as store:
        committed(store, RENEWAL)
        error = wait_until(lambda: refusal(store), "the token expires")
        assert_one_line_with(table.location, error)
        token = options["azure_storage_sas_key"]
        assert not [part for part in token.split("&") if part.startswith("sig=") and part[4:] in str(error.value)]
        with pytest.raises(StoreUnavailableError):
            store.read()
    with DeltaStore(table.location, sas_options(table.proxy, table.container, seconds=60.0)) as store:
        committed(store, RENEWAL)
    assert table.renewals() == before + 2
