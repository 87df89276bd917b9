"""A fixture for tests that must pass by the fast path and by the client's public calls; a conftest imports it."""

from __future__ import annotations

import pytest

from spark_ehbalance.hub.wire import link


@pytest.fixture(params=["fast", "public"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By the fast path; or by the client's public calls, because the client's version is not a tested one."""
    if request.param == "public":
        monkeypatch.setattr(link, "TESTED", ())
    return str(request.param)
