"""Fixtures of this folder's tests."""

from __future__ import annotations

from tests.query.conftest import group

__all__ = ["group"]
