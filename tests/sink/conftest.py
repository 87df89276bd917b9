"""Fixtures of the sink's tests, which need no Spark."""

from __future__ import annotations

from spark_ehbalance.emulator.fixtures import emulator

__all__ = ["emulator"]
