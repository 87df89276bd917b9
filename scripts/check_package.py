"""Builds the package, checks its files, and runs the quick start as a new user would: `make package`.

The wheel is installed into an empty virtual environment in a temporary folder. There, the quick start's section about
the first stream is followed word for word: its files are saved, and its commands are run. pip finds this project's
wheel in addition to the packages in its index, and uses the versions in constraints.txt; nothing else is added.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from deltalake import DeltaTable

from spark_ehbalance.lease_table.delta.store import DeltaStore

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
BEGAN = time.monotonic()

#: The top-level folders of a wheel, except the one that contains the metadata.
PACKAGES = {"spark_ehbalance", "pyspark_ehbalance"}

#: The page with the quick start, and the section that is followed.
QUICK_START = ROOT / "docs/quick-start.md"
FIRST_STREAM = "Your first stream, on the emulator"

#: The last command of the section, which prints how many events the table contains.
COUNT = """python -c "from deltalake import DeltaTable; print(DeltaTable('data/flights').count(), 'events')\""""

#: The lines of Spark's progress bar, which may interrupt a traceback.
PROGRESS = re.compile(r"^(\[Stage .*| *)\n", re.MULTILINE)

#: With a Unix socket, Spark's daemon sometimes prints this: see docs/troubleshooting.md.
SPARK_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:  File .*daemon\.py.*\n)+BrokenPipeError: .*\n")

#: A program from docs/jobs.md that prints the folder with the jobs.
JOBS = "import spark_ehbalance.shipped as s; print(s.folder())"

#: Maximum seconds per step. A first run downloads Spark and Delta.
TIMEOUT = 300.0

#: Environment variables that would select this environment's Spark in place of the new one's.
_PYTHON_VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "SPARK_HOME", "VIRTUAL_ENV")


class CheckError(Exception):
    """A check of the package failed. The text is the reason."""


def main() -> None:
    try:
        build()
        report("built and checked")
        with tempfile.TemporaryDirectory(prefix="ehbalance-package-", ignore_cleanup_errors=True) as folder:
            user = User(Path(folder).resolve())
            user.install()
            if not re.fullmatch(r"ehbalance \d+\.\d+\.\d+\S*\n", user.run("ehbalance --version")):
                raise CheckError("ehbalance --version does not print a version")
            if str(user.folder.parent / "venv") not in (where := user.run(f"python -c '{JOBS}'")):
                raise CheckError(f"the jobs are outside the environment:\n{where}")
            first_stream(user, QUICK_START.read_text(encoding="utf-8"))
    except CheckError as error:
        sys.exit(f"package: {error}")
    report("OK")


def report(text: str) -> None:
    print(f"package: {time.monotonic() - BEGAN:5.1f} s  {text}", flush=True)


# --- the files ---------------------------------------------------------------------------------------------------


def build() -> None:
    """Build the sdist and the wheel, and check them. Raises `CheckError`."""
    for old in [*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")]:
        old.unlink()
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT])  # the wheel is built from the sdist
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    _run([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist])
    with zipfile.ZipFile(wheel) as archive:
        check_wheel({name: archive.read(name) for name in archive.namelist()})
    with tarfile.open(sdist) as tar:
        names = {member.name.partition("/")[2] for member in tar.getmembers() if member.isfile()}
    if more := names - set(tracked(".")) - {"PKG-INFO"}:
        raise CheckError(f"the sdist has files that are not in the repository: {sorted(more)[:5]}")


def check_wheel(files: Mapping[str, bytes]) -> None:
    """Check the files of a wheel: name → content. Raises `CheckError`."""
    tops = {name.partition("/")[0] for name in files}
    if more := {top for top in tops - PACKAGES if not top.endswith(".dist-info")}:
        raise CheckError(f"the wheel contains {', '.join(sorted(more))}")
    wanted = {file for package in PACKAGES for file in tracked(package)}
    wanted |= {f"spark_ehbalance/shipped/{file}" for folder in ("jobs", "conf") for file in tracked(folder)}
    if wrong := wanted ^ {name for name in files if name.partition("/")[0] in PACKAGES}:
        raise CheckError(f"the wheel's files differ from the repository's: {', '.join(sorted(wrong)[:5])}")
    if not any(name.endswith("/licenses/LICENSE") for name in files):
        raise CheckError("the wheel has no license")
    (metadata,) = (content.decode() for name, content in files.items() if name.endswith(".dist-info/METADATA"))
    if links := re.findall(r"\]\((?!https?:|#)[^)]*\)", metadata):
        raise CheckError(f"these links would be broken on PyPI: {links[:3]}")
    for path in {str(ROOT), str(Path.home()), sys.prefix} - {"/", "/root"}:
        if named := [name for name, content in files.items() if f"{path}/".encode() in content]:
            raise CheckError(f"{named[0]} contains the path {path}")


def tracked(folder: str) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if (ROOT / name).exists()]


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise CheckError(f"{' '.join(map(str, command))} failed:\n{done.stdout[-3000:]}")


# --- a new user --------------------------------------------------------------------------------------------------


class User:
    """A new user, who has a folder with an empty virtual environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir(parents=True)
        self._venv = folder / "venv"
        path = [part for part in os.environ["PATH"].split(os.pathsep) if part != f"{sys.prefix}/bin"]
        self._environment = {name: value for name, value in os.environ.items() if name not in _PYTHON_VARIABLES} | {
            "PATH": os.pathsep.join([str(self._venv / "bin"), *path]),
            "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
            "PIP_FIND_LINKS": f"{os.environ.get('PIP_FIND_LINKS', '')} {DIST.as_uri()}".strip(),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "VIRTUAL_ENV": str(self._venv),
        }

    def install(self) -> None:
        """Create the environment, and install the package with the README's first command. Raises `CheckError`."""
        _run([sys.executable, "-m", "venv", self._venv])
        first = blocks((ROOT / "README.md").read_text(encoding="utf-8"), "Try it")[0][1].splitlines()[0]
        if not first.startswith("pip install "):
            raise CheckError(f"the README's first command is not a pip install: {first}")
        self.run(first)

    def export(self, name: str, value: str) -> None:
        """Set an environment variable for all commands that are run from now on."""
        self._environment[name] = value

    def run(self, command: str) -> str:
        """Run a command line to its end. Returns its standard output. Raises `CheckError` if it fails."""
        report(f"$ {command}")
        done = self.try_run(command)
        if done.returncode:
            raise CheckError(f"{command} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout

    def try_run(self, command: str) -> subprocess.CompletedProcess[str]:
        shell = ["timeout", f"{TIMEOUT:g}", "bash", "-c", command]
        return subprocess.run(
            shell, cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )

    @contextlib.contextmanager
    def in_terminal(self, command: str) -> Iterator[Terminal]:
        """Run a command line in its own session, until the end of the `with` block."""
        report(f"$ {command}    (in its own terminal)")
        log = self.folder.with_name(f"{abs(hash((command, time.monotonic())))}.log")
        with log.open("w") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield Terminal(command, log, process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Terminal:
    def __init__(self, command: str, log: Path, process: subprocess.Popen[bytes]) -> None:
        self._command, self._log, self._process = command, log, process

    def printed(self) -> str:
        return self._log.read_text(errors="replace")

    def check(self) -> None:
        if self._process.poll() is not None:
            raise CheckError(f"{self._command} has ended:\n{self.printed()[-3000:]}")

    def ctrl_c(self) -> None:
        """Press Ctrl-C, and wait until the command ends. Raises `CheckError` if it does not end properly."""
        os.killpg(self._process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        printed = SPARK_TRACEBACK.sub("", PROGRESS.sub("", self.printed()))
        if self._process.poll() is None or "Traceback" in printed or "stopped after" not in printed:
            raise CheckError(f"{self._command} does not end properly:\n{printed[-3000:]}")


def blocks(page: str, section: str) -> list[tuple[str, str]]:
    """The language and the text of each code block in the section."""
    _, found, rest = page.partition(f"\n## {section}\n")
    if not found:
        raise CheckError(f"there is no section {section!r}")
    return re.findall(r"^```(\w+)\n(.*?)^```$", rest.partition("\n## ")[0], re.DOTALL | re.MULTILINE)


def first_stream(user: User, page: str) -> None:
    """Follow the quick start's section about the first stream. Raises `CheckError`."""
    lines: list[str] = []
    for language, text in blocks(page, FIRST_STREAM):
        if language == "python":
            program = re.match(r"# (\w+\.py)\n", text)
            if program is None:
                raise CheckError(f"a program's first line is not the name of its file: {text[:80]}")
            (user.folder / program[1]).write_text(text)
        elif language == "sh":
            lines += text.splitlines()
    export = next(line for line in lines if line.startswith("export "))
    name, _, value = shlex.split(export)[1].partition("=")
    emulator, *jobs = [line for line in lines if line.startswith(("ehbalance emulator", "python stream.py"))]
    rest = [line for line in lines if line not in (emulator, export, *jobs)]
    if rest[-1] != COUNT:
        raise CheckError(f"the section {FIRST_STREAM!r} does not end with {COUNT}")
    with contextlib.ExitStack() as terminals:
        hub = terminals.enter_context(user.in_terminal(emulator))
        _wait(
            lambda: f"Emulator ready: {value}\n" in hub.printed(),
            "the emulator prints the exported connection string",
            hub,
        )
        user.export(name, value)
        first = terminals.enter_context(user.in_terminal(jobs[0]))
        _wait(lambda: _partition_counts(user) == [8], "the first job has all partitions", first)
        second = terminals.enter_context(user.in_terminal(jobs[1]))
        _wait(lambda: _partition_counts(user) == [4, 4], "two jobs have four partitions each", first, second)
        for line in rest[:-1]:
            user.run(line)
        _wait(lambda: _count_rows(user) == 800, "the table has 800 events", first, second)
        if (printed := user.run(COUNT)) != "800 events\n":
            raise CheckError(f"the last command prints {printed}")
        report("800 events are in the table; Ctrl-C to the first job")
        first.ctrl_c()
        _wait(lambda: _partition_counts(user) == [8], "the other job has all partitions", second)


def _partition_counts(user: User) -> list[int]:
    """The number of partitions of each owner; empty if a partition has no owner. Does not use a command, which would
    take CPU time from the jobs that are starting."""
    with DeltaStore(str(user.folder / "leases" / "flights")) as store:
        owners = [lease.owner for lease in store.read().leases.values()] if store.exists() else []
    return [] if None in owners else sorted(Counter(owners).values())


def _count_rows(user: User) -> int:
    path = str(user.folder / "data" / "flights")
    return DeltaTable(path).count() if DeltaTable.is_deltatable(path) else 0


def _wait(condition: Callable[[], bool], what: str, *terminals: Terminal) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        for terminal in terminals:
            terminal.check()
        if time.monotonic() > deadline:
            ends = "\n".join(terminal.printed()[-2000:] for terminal in terminals)
            raise CheckError(f"waited {TIMEOUT:g} s until {what}\n{ends}")
        time.sleep(1)


if __name__ == "__main__":
    main()
