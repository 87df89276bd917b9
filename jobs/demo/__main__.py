"""Run the demo: python -m jobs.demo, from the folder above jobs."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from .processes import DemoError, Interrupted
from .screen import Dashboard, Lines
from .show import Result, Show
from .verdict import show


def main() -> int:
    """Run the demo. Returns the exit code: 0 if every event is in the table once and every rule of ownership held."""
    options = _options()
    console = Console()
    screen = Dashboard(console) if console.is_terminal and not options.plain else Lines(console)
    with tempfile.TemporaryDirectory(prefix="ehbalance-demo-", ignore_cleanup_errors=True) as folder:
        demo = Show(Path(folder), screen, play_seconds=options.seconds, limit=options.limit)
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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make run",
        description="Two Spark queries share a hub and write one table: every event once.",
    )
    parser.add_argument("--seconds", type=float, default=100, help="how long the flights are sent (default: 100)")
    parser.add_argument("--limit", type=float, default=300, help="fail after this many seconds (default: 300)")
    parser.add_argument("--plain", action="store_true", help="plain lines even on a terminal")
    options = parser.parse_args()
    for name in ("seconds", "limit"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name} {getattr(options, name):g}: allowed are numbers over 0")
    return options


def _report(result: Result, console: Console) -> int:
    verdict, ownership = result.verdict, result.ownership
    show(verdict, console)
    lines = [
        f"Looked {ownership.looks} times at the leases: no partition had two owners or an unknown one, and no epoch or "
        f"checkpoint fell. At the hub a partition had at most {result.most_readers} reader at once.",
        f"In {ownership.looks_with_a_gap} of these looks a partition had no owner, "
        f"for at most {ownership.longest_gap:.1f} s. {result.without_reader:.1f} s after the SIGKILL A had the "
        "leases of B, which had expired.",
    ]
    passed = verdict.complete and result.most_readers <= 1
    lines.append(
        f"{'OK' if passed else 'FAILED'}: {verdict.expected:,} flights: {verdict.missing:,} missing, "
        f"{verdict.duplicates:,} duplicates, {ownership.moves} moves of ownership, {result.seconds:.0f} s"
    )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
