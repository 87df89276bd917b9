"""Fixtures of this folder's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.service.hub import TABLES, VARIABLES, Hub, from_environment


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """The real hub with `make test-azure`, otherwise the emulator's."""
    folder = str(tmp_path_factory.mktemp("tables"))
    if os.environ.get("EHBALANCE_TEST_AZURE"):
        given = from_environment()
        if not {"connectionString", "fullyQualifiedNamespace"} & given.keys():
            pytest.skip(f"no namespace is named: set {', '.join(VARIABLES)} (CONTRIBUTING.md)")
        yield Hub(given, os.environ.get(TABLES, folder), is_real=True)
        return
    with Emulator({"hub": 4}, sas_keys={"owner": "theVerySecretKey"}) as emulator:
        yield Hub({"connectionString": emulator.connection_string("hub")}, folder, is_real=False)


@pytest.fixture
def table(hub: Hub, tmp_path: Path) -> str:
    return hub.table()
