"""Fixtures of this folder's tests."""

from __future__ import annotations

from spark_ehbalance.emulator.fixtures import emulator
from tests.source.conftest import group

__all__ = ["emulator", "group"]
