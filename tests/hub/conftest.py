"""Fixtures of this folder's tests."""

from __future__ import annotations

from spark_ehbalance.emulator.fixtures import emulator
from tests.ways import way

__all__ = ["emulator", "way"]
