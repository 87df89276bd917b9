"""The members of a group, each in its own process that writes the events it reads to a file."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.query.queries import Event


@dataclass
class Member:
    """A process that reads until its standard input ends, and the file of the events that it read."""

    name: str
    process: subprocess.Popen[str]
    path: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> None:
        """Stop gracefully."""
        self.process.communicate(timeout=60)

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()

    def read_events(self) -> list[Event]:
        """The events read so far; the last line in the file can be incomplete."""
        lines = self.path.read_text().split("\n")[:-1] if self.path.exists() else []
        return [(partition, int(number)) for partition, number in map(str.split, lines)]


class AnyMember(Protocol):
    """The interface of a member of any kind, like `Member`."""

    @property
    def name(self) -> str: ...
    def kill(self) -> None: ...
    def stop(self) -> None: ...
    def end(self) -> None: ...
    def read_events(self) -> list[Event]: ...


class Members:
    """Starts members of a group, whose files are in `folder`."""

    folder: Path
    members: list[AnyMember]

    def start(self, name: str, *command: str, **settings: Any) -> Member:
        log = (self.folder / f"{name}.log").open("w")
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, **settings)
        member = Member(name, process, self.folder / name)
        self.members.append(member)
        return member

    def start_query(self, name: str, options: Mapping[str, str]) -> Member:
        command = (sys.executable, "-m", "tests.query_process", name, json.dumps(options), str(self.folder / name))
        return self.start(name, *command)

    def read_events(self) -> Counter[Event]:
        """The number of times that all members together have read each event."""
        return Counter(event for member in self.members for event in member.read_events())

    def close(self) -> None:
        for member in self.members:
            member.end()


@contextlib.contextmanager
def repeating(pause: float, action: Callable[[], None]) -> Iterator[None]:
    """Run `action` repeatedly in a thread, with a pause of `pause` seconds before every call."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(pause):
            action()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
