"""Runs a page's marked blocks one after another in a separate folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import mkstemp
from typing import Any

from tests.docs.blocks import PAGES, Block, blocks
from tests.waiting import wait_until

#: The timeout, in seconds, of a command and of a program after it was interrupted.
_END = 180


class PageRun:
    """Runs the marked blocks of a page in `folder`, which is also the working directory.

    `replaced` maps placeholders for the reader's values to the values used here. Python blocks share `names`, as in a
    session.
    """

    def __init__(self, page: str, folder: Path, replaced: Mapping[str, str], **names: Any) -> None:
        self.folder = folder
        self.names = names
        self._exports = ""
        self._replaced = replaced
        self._left = [block for block in blocks(page) if block.mark == "run"]
        self._programs = ExitStack()

    def next(self) -> str:
        """Run the next block and return its output."""
        block = self._left.pop(0)
        text = block.text
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        if block.detail == "as a file":
            name = text.partition("\n")[0].removeprefix("# ")
            (self.folder / name).write_text(text)
            return ""
        if block.detail == "in the background":
            words = ["bash", "-c", f"{self._exports}exec {text}"]
            return self._background(words, "ready" if text.startswith("ehbalance ") else "\n")
        if block.language == "python":
            return self._python(block, text)
        if text.startswith("export "):
            self._exports += text
        words = ["bash", "-ec", self._exports + text]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_END, env=_environment())
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self, *, passed: bool) -> None:
        """End programs that are still running."""
        self._programs.close()
        if passed:
            assert not self._left, "the page has more blocks to run"

    def _python(self, block: Block, text: str) -> str:
        code = compile("\n" * (block.line - 1) + text, str(PAGES[block.page]), "exec")
        with redirect_stdout(StringIO()) as printed:
            exec(code, self.names)
        return printed.getvalue()

    def _background(self, words: list[str], ready: str) -> str:
        return self._programs.enter_context(_program(words, self.folder, ready))


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}


@contextmanager
def _program(words: list[str], folder: Path, ready: str) -> Iterator[str]:
    """Run a program until the `with` block ends; yields its output once that contains `ready`."""
    handle, name = mkstemp(dir=folder)
    output = Path(name)
    with (
        os.fdopen(handle, "w") as file,
        subprocess.Popen(words, cwd=folder, env=_environment(), stdout=file, stderr=file) as it,
    ):
        try:

            def shown() -> str:
                text = output.read_text()
                assert it.poll() is None, text
                return text if ready in text else ""

            yield wait_until(shown, f"{words} has printed something")
        finally:
            it.send_signal(signal.SIGINT)
            try:
                it.wait(_END)
            finally:
                it.kill()
