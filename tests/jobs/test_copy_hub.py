"""What copy_hub refuses before its query starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.jobs.copy_hub import Settings, start
from spark_ehbalance.jobs.settings import SettingError


def test_a_hub_is_not_copied_to_itself_by_another_name(emulator: Emulator, tmp_path: Path) -> None:
    emulator.add_hub("hub", 1)
    connection = emulator.connection_string("hub")
    settings = Settings(
        checkpoint_location=str(tmp_path), trigger={"availableNow": True}, source={"connectionString": connection},
        sink={"connectionString": connection.replace("localhost", "127.0.0.1")},
    )  # fmt: skip
    no_spark: Any = None
    with pytest.raises(SettingError, match=r"source\.\* and .*sink\.\* are the same hub, hub, by two names"):
        start(no_spark, settings, lambda frame: frame)
