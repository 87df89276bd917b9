"""Runs the demo from its processes to its verdict."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

from rich.console import Console

from .processes import DemoError, Interrupted
from .screen import Screen
from .show import Result, Show
from .verdict import show


def run(*, seconds: float, limit: float, plain: bool) -> int:
    """Run the demo: the flights are sent over `seconds`, and all may take `limit` seconds. `plain`: lines
    instead of a picture, also on a terminal.

    Returns the exit code: 0 if every event is in the table once and every rule of ownership held.
    """
    os.environ.pop("SPARK_HOME", None)  # it may be of another Spark than pyspark
    console = Console()
    screen = Screen(console, live=console.is_terminal and not plain)
    with tempfile.TemporaryDirectory(prefix="ehbalance-demo-", ignore_cleanup_errors=True) as folder:
        demo = Show(Path(folder), screen, play_seconds=seconds, limit=limit)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, demo.interrupt)
        try:
            with screen:
                result = demo.run()
            return _report(result, console)
        except DemoError as error:
            console.print(f"FAILED: {error}", highlight=False, markup=False, soft_wrap=True)
            return 1
        except Interrupted as interrupted:
            console.print("Interrupted: cleaning up.")
            return 128 + int(interrupted.args[0])
        finally:
            if demo.player is not None:
                demo.player.stop()
            for child in reversed(demo.children):
                child.kill()


def _report(result: Result, console: Console) -> int:
    verdict, ownership = result.verdict, result.ownership
    show(verdict, console)
    passed = verdict.complete and result.most_readers <= 1
    for line in (
        f"Looked {ownership.looks} times at the leases: no partition had two owners or an unknown one, and no epoch or "
        f"checkpoint fell. At the hub a partition had at most {result.most_readers} reader at once.",
        f"In {ownership.looks_with_a_gap} of these looks a partition had no owner, "
        f"for at most {ownership.longest_gap:.1f} s. {result.without_reader:.1f} s after the SIGKILL A had the "
        "leases of B, which had expired.",
        f"{'OK' if passed else 'FAILED'}: {verdict.expected:,} flights: {verdict.missing:,} missing, "
        f"{verdict.duplicates:,} duplicates, {ownership.moves} moves of ownership, {result.seconds:.0f} s",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    return 0 if passed else 1
