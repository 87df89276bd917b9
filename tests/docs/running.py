"""Runs the blocks of a page that are marked so, one after the other in a folder of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import mkstemp
from typing import Any

from tests.cli.command import Command
from tests.docs.blocks import PAGES, Block, blocks
from tests.docs.shell import commands
from tests.waiting import wait_until

#: Seconds that a program may take to end after it was interrupted.
_END = 60


class PageRun:
    """The marked blocks of a page, in `folder`, which is the working directory too.

    `replaced` are texts that stand for something of the reader's, with what is there instead. Python blocks share
    `names`, as in one session.
    """

    def __init__(
        self,
        page: str,
        folder: Path,
        command: Command,
        replaced: Mapping[str, str],
        set_variable: Callable[[str, str], None],
        **names: Any,
    ) -> None:
        self.folder = folder
        self.names = names
        self._command = command
        self._set_variable = set_variable
        self._replaced = replaced
        self._left = runnable(page)
        self._programs = ExitStack()

    def next(self) -> str:
        """Run the next block; returns what it has printed. What the page shows of a command's output must be in it."""
        block = self._left.pop(0)
        text = block.text
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        if block.detail == "in the background":
            ready = "ready" if text.startswith("ehbalance ") else "\n"
            return self._background(["bash", "-c", f"exec {text.strip()}"], lambda shown: ready in shown)
        if block.detail == "as a file":
            name = text.partition("\n")[0].removeprefix("# ")
            (self.folder / name).write_text(text)
            return ""
        if block.detail == "as a program":
            program = self.folder / "program.py"
            program.write_text(text)
            return self._background([sys.executable, str(program)], lambda shown: "\n" in shown)
        if block.language == "python":
            return self._python(block, text)
        return "".join(self._shell(text))

    def close(self, *, passed: bool) -> None:
        """End what still runs."""
        self._programs.close()
        if passed:
            assert not self._left, "the page has more blocks to run"

    def _python(self, block: Block, text: str) -> str:
        code = compile("\n" * (block.line - 1) + text, str(PAGES[block.page]), "exec")
        with redirect_stdout(StringIO()) as printed:
            exec(code, self.names)
        return printed.getvalue()

    def _shell(self, text: str) -> Iterator[str]:
        for words, expected in zip(commands(text), _outputs(text), strict=True):
            if words[0] == "export":
                for assignment in words[1:]:
                    name, _, value = assignment.partition("=")
                    self._set_variable(name, value)
                continue
            if words[0] == "python":
                done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, timeout=_END)
                assert done.returncode == 0, done.stderr
                yield done.stdout
                continue
            assert words[0] == "ehbalance", f"{words[0]} cannot be run here"
            outcome = self._command(*words[1:])
            assert outcome.code == 0, outcome.err
            assert re.fullmatch(_pattern(expected), outcome.out + outcome.err), outcome.out
            yield outcome.out

    def _background(self, words: list[str], enough: Callable[[str], bool]) -> str:
        return self._programs.enter_context(_program(words, self.folder, enough))


def runnable(page: str) -> list[Block]:
    return [block for block in blocks(page, PAGES[page].read_text(encoding="utf-8")) if block.mark == "run"]


@contextmanager
def _program(words: list[str], folder: Path, enough: Callable[[str], bool]) -> Iterator[str]:
    """Runs until the block is left; yields what it has printed once that is `enough`."""
    handle, name = mkstemp(dir=folder)
    output = Path(name)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    with (
        os.fdopen(handle, "w") as file,
        subprocess.Popen(words, cwd=folder, env=environment, stdout=file, stderr=file) as it,
    ):
        try:

            def shown() -> str:
                text = output.read_text()
                assert it.poll() is None, text
                return text if enough(text) else ""

            yield wait_until(shown, f"{words} has printed something")
        finally:
            it.send_signal(signal.SIGINT)
            try:
                it.wait(_END)
            finally:
                it.kill()


def _outputs(text: str) -> list[str]:
    """What a block shows below each command; nothing is shown where it has no prompts."""
    lines = text.replace("\\\n", " ").splitlines(keepends=True)
    if not any(line.startswith("$ ") for line in lines):
        return ["…\n"] * len(list(commands(text)))
    return re.split(r"(?m)^\$ .*\n?", "".join(lines))[1:]


def _pattern(expected: str) -> str:
    """A line that is `…` stands for any number of lines, and one within a line for any text."""
    lines = [
        "(?:.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + "\n" for line in expected.splitlines()
    ]
    return "".join(lines)
