"""The demo's output."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from spark_ehbalance.demo.screen import Screen
from spark_ehbalance.group.model import Lease


@pytest.mark.parametrize("live", [True, False])
def test_log_lines_and_progress_are_shown_at_once(live: bool) -> None:
    shown = io.StringIO()
    with Screen(Console(file=shown, force_terminal=live, width=100), live=live) as screen:
        screen.log(0.1, "fetching")
        assert "fetching" in shown.getvalue()
        screen.show(1.0, "A starts", [5, 5], {"0": Lease("0", owner="A")})
        assert "A starts" in shown.getvalue()
        before = len(shown.getvalue())
        screen.log(2.0, "a third has been sent")
        screen.show(3.0, "B starts", [6, 5], {})
        again = shown.getvalue()[before:]
        assert "a third has been sent" in again
        assert ("B starts" in again) is live, "plain lines of progress come every 5 seconds"
