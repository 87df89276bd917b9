"""Errors of copy_hub before the query starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.jobs.copy_hub import Settings, start
from spark_ehbalance.jobs.settings import PREFIX, SettingError
from tests.raising import raises


def test_copy_of_a_hub_to_itself_under_another_name_is_rejected(emulator: Emulator, tmp_path: Path) -> None:
    emulator.add_hub("hub", 1)
    connection = emulator.connection_string("hub")
    settings = Settings(
        checkpoint_location=str(tmp_path), trigger={"availableNow": True}, source={"connectionString": connection},
        sink={"connectionString": connection.replace("localhost", "127.0.0.1")},
    )  # fmt: skip
    no_spark: Any = None
    sides, reason = f"{PREFIX}source.* and {PREFIX}sink.*", re.compile("both are the hub hub,")
    with raises(SettingError, "EHB_OPTIONS_CONFLICT", options=sides, reason=reason):
        start(no_spark, settings, lambda frame: frame)
