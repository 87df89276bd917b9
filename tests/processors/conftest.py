from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.storage.azurite import ACCOUNT, make_container
from spark_ehbalance.emulator import Emulator
from spark_ehbalance.emulator.fixtures import emulator
from tests.azure_storage.conftest import all_requests, proxy, storage
from tests.processors.group import PARTITIONS, MixedGroup

__all__ = ["all_requests", "emulator", "proxy", "storage"]


@pytest.fixture
def group(emulator: Emulator, storage: str, tmp_path: Path) -> Iterator[MixedGroup]:
    """A hub with 12 partitions, and a container for the group's blobs."""
    emulator.add_hub("hub", PARTITIONS)
    container = uuid.uuid4().hex
    make_container(storage, container)
    made = MixedGroup(emulator, f"{storage}/{ACCOUNT}", container, tmp_path)
    yield made
    made.close()
