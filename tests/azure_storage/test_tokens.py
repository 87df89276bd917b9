"""Tokens that expire while a table is in use."""

from __future__ import annotations

import time

import pytest

from chaos.storage.azurite import identity_options, sas_options, signature
from chaos.storage.proxy import StorageProxy
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


def test_tokens_of_an_identity_are_renewed_before_they_expire(table: Table, proxy: StorageProxy) -> None:
    proxy.issue_tokens(signature(table.container, seconds=120.0), seconds=1.0)
    before, commits = table.renewals(), 0
    with DeltaStore(table.location, identity_options(table.proxy)) as store:
        began = time.monotonic()
        while proxy.tokens() < 3 or time.monotonic() - began < 1.5:  # the first one expires meanwhile
            committed(store, RENEWAL)
            commits += 1
        store.tidy()  # by delta-rs as well
    assert table.renewals() == before + commits
