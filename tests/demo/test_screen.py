"""The demo's picture: what happens before there is one is shown as well."""

from __future__ import annotations

import io

from rich.console import Console

from spark_ehbalance.demo.screen import Picture, Screen


def test_what_happens_is_shown_at_once() -> None:
    shown = io.StringIO()
    with Screen(Console(file=shown, force_terminal=True, width=100), live=True) as screen:
        screen.log(0.1, "fetching")
        assert "fetching" in shown.getvalue()
        screen.show(Picture(1.0, "A starts", 100, [5, 5], [1, 2], {}))
        assert "A starts" in shown.getvalue()
        before = len(shown.getvalue())
        screen.log(2.0, "a third has been sent")
        again = shown.getvalue()[before:]
        assert "A starts" in again
        assert "a third has been sent" in again
