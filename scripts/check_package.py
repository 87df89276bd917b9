"""Builds the package, checks what is in it, and tries it as a new user would: `make package`.

The wheel is installed into an empty virtual environment in a temporary folder. There its commands run, and the quick
start's section of the first stream runs word for word: what it says to save is saved, what it says to run is run. In
another environment, without Spark, the example of a test on the emulator's page runs with pytest and the client alone.
pip gets this project's wheel beside the packages of its index, and the versions of constraints.txt; nothing else is
added.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
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

ROOT = Path(__file__).resolve().parents[1]
BEGAN = time.monotonic()

#: What a wheel has at its top; the rest of its files is named by the version.
PACKAGES = {"spark_ehbalance", "pyspark_ehbalance"}

#: The page of the walk, and its section that is run.
QUICK_START = ROOT / "docs/quick-start.md"
FIRST_STREAM = "Your first stream, on the emulator"

#: The page of the emulator, and its section with a test.
EMULATOR = ROOT / "docs/emulator.md"
IN_TESTS = "In tests"

#: The last line of the first stream, which prints how many events the table has.
COUNT = """python -c "from deltalake import DeltaTable; print(DeltaTable('data/flights').count(), 'events')\""""

#: What Spark's daemon prints now and then with a Unix socket: docs/troubleshooting.md.
SPARKS_OWN = re.compile(r"Traceback \(most recent call last\):\n(?:  File .*daemon\.py.*\n)+BrokenPipeError: .*\n")

#: Seconds that a step may take: a first run downloads Spark and Delta.
PATIENCE = 300.0

#: Variables with which this environment's Spark is found instead of the new one's.
_OURS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "SPARK_HOME", "VIRTUAL_ENV")


class CheckError(Exception):
    """The package is not as it should be. The text says how."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the Python of the new virtual environment")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the packages are built")
    parser.add_argument("--short", action="store_true", help="without the demo and the job")
    options = parser.parse_args()
    try:
        build(options.dist)
        say("built and checked")
        with tempfile.TemporaryDirectory(prefix="ehbalance-package-", ignore_cleanup_errors=True) as folder:
            tester = User(Path(folder, "tester").resolve(), options.python, options.dist)
            a_test(tester, EMULATOR.read_text(encoding="utf-8"))
            user = User(Path(folder, "user").resolve(), options.python, options.dist)
            user.install()
            say("installed")
            commands(user)
            first_stream(user, QUICK_START.read_text(encoding="utf-8"), None if options.short else job)
            say("the quick start's first stream has run")
            if not options.short:
                user.run("ehbalance demo --seconds 10 --plain --out demo.html")
                if not (user.folder / "demo.html").is_file():
                    raise CheckError("ehbalance demo --out has drawn nothing")
    except CheckError as error:
        sys.exit(f"package: {error}")
    say("OK")


def say(text: str) -> None:
    print(f"package: {time.monotonic() - BEGAN:5.1f} s  {text}", flush=True)


# --- what is built ---------------------------------------------------------------------------------------------------


def build(dist: Path) -> None:
    """Build sdist and wheel into `dist`, and check them. Raises `CheckError`."""
    for old in [*dist.glob("*.whl"), *dist.glob("*.tar.gz")]:
        old.unlink()
    python = [sys.executable, "-m"]
    with tempfile.TemporaryDirectory() as direct:
        _run([*python, "build", "--no-isolation", "--outdir", dist, ROOT])  # the wheel is built from the sdist
        _run([*python, "build", "--no-isolation", "--wheel", "--outdir", direct, ROOT])
        (wheel,), (other,) = dist.glob("*.whl"), Path(direct).glob("*.whl")
        if hashlib.sha256(wheel.read_bytes()).digest() != hashlib.sha256(other.read_bytes()).digest():
            raise CheckError("the wheel built from the sdist is not the wheel built from the repository")
    (sdist,) = dist.glob("*.tar.gz")
    _run([*python, "twine", "check", "--strict", wheel, sdist])
    check_wheel(_files_of_wheel(wheel))
    check_sdist(_files_of_sdist(sdist))


def check_wheel(files: Mapping[str, bytes]) -> None:
    """Check the files of a wheel, by name. Raises `CheckError`."""
    tops = {name.partition("/")[0] for name in files}
    if more := {top for top in tops - PACKAGES if not top.endswith(".dist-info")}:
        raise CheckError(f"the wheel has {', '.join(sorted(more))}")
    wanted = {file for package in PACKAGES for file in _tracked(package)}
    wanted |= {f"spark_ehbalance/shipped/{file}" for folder in ("jobs", "conf") for file in _tracked(folder)}
    if wrong := wanted ^ {name for name in files if name.partition("/")[0] in PACKAGES}:
        raise CheckError(f"the wheel's files are not those of the repository: {', '.join(sorted(wrong)[:5])}")
    if not any(name.endswith("/licenses/LICENSE") for name in files):
        raise CheckError("the wheel has no license")
    (metadata,) = (content.decode() for name, content in files.items() if name.endswith(".dist-info/METADATA"))
    if links := re.findall(r"\]\((?!https?:|#)[^)]*\)", metadata):
        raise CheckError(f"links that lead nowhere on PyPI: {links[:3]}")
    _check_paths(files)


def check_sdist(files: Mapping[str, bytes]) -> None:
    """Check the files of an sdist, by name within its folder. Raises `CheckError`."""
    if more := files.keys() - set(_tracked(".")) - {"PKG-INFO"}:
        raise CheckError(f"the sdist has files that are not in the repository: {sorted(more)[:5]}")
    if missing := [name for name in ("LICENSE", "README.md", "tests/test_docs.py") if name not in files]:
        raise CheckError(f"the sdist lacks {', '.join(missing)}")
    _check_paths(files)


def _check_paths(files: Mapping[str, bytes]) -> None:
    """Raise `CheckError` if a file names a folder of this machine."""
    for path in {str(ROOT), str(Path.home()), sys.prefix} - {"/", "/root"}:
        if named := [name for name, content in files.items() if f"{path}/".encode() in content]:
            raise CheckError(f"{named[0]} names {path}")


def _tracked(folder: str) -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in done.stdout.splitlines() if (ROOT / name).exists()]


def _files_of_wheel(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def _files_of_sdist(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as sdist:
        members = [(member.name, sdist.extractfile(member)) for member in sdist.getmembers() if member.isfile()]
        return {name.partition("/")[2]: content.read() for name, content in members if content}


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise CheckError(f"{' '.join(map(str, command))} failed:\n{done.stdout[-3000:]}")


# --- what a user does ------------------------------------------------------------------------------------------------


class User:
    """Somebody with an empty virtual environment, in a folder of their own."""

    def __init__(self, folder: Path, python: str, dist: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir(parents=True)
        self._python = python
        self._venv = folder / "venv"
        self._log = folder / "log"
        self._path = os.pathsep.join([str(self._venv / "bin"), _path_without_ours()])
        self._environment = {name: value for name, value in os.environ.items() if name not in _OURS} | {
            "PATH": self._path,
            "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
            "PIP_FIND_LINKS": f"{os.environ.get('PIP_FIND_LINKS', '')} {dist.resolve().as_uri()}".strip(),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "VIRTUAL_ENV": str(self._venv),
        }

    def make_environment(self) -> None:
        _run([self._python, "-m", "venv", self._venv])
        # As with Python 3.12 and newer, whatever this one is.
        _run([self._venv / "bin" / "python", "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools"])

    def install(self) -> None:
        """Make the environment and install as the README's first line says. Raises `CheckError`."""
        self.make_environment()
        first = blocks((ROOT / "README.md").read_text(encoding="utf-8"), "Try it")[0][1].splitlines()[0]
        if not first.startswith("pip install "):
            raise CheckError(f"the README's first command is no pip install: {first}")
        self.run(first)

    def export(self, name: str, value: str) -> None:
        """Set a variable in every terminal that is opened from now on."""
        self._environment[name] = value

    def run(self, command: str) -> str:
        """Run a command line to its end. Returns its standard output. Raises `CheckError` if it fails."""
        say(f"$ {command}")
        done = self.tried(command)
        if done.returncode:
            raise CheckError(f"{command} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout

    def tried(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command line to its end. Raises `CheckError` if it does not end."""
        try:
            return subprocess.run(
                ["bash", "-c", command],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired as error:
            raise CheckError(f"{command} does not end: {str(error.output)[-3000:]}") from None

    @contextlib.contextmanager
    def in_terminal(self, command: str) -> Iterator[Terminal]:
        """Run a command line until the end of the block, which ends it as Ctrl-C does."""
        say(f"$ {command}    (in a terminal of its own)")
        terminal = Terminal(command, self.folder, self._environment, self._log.with_name(f"{hash(command)}.log"))
        try:
            yield terminal
        finally:
            terminal.close()


class Terminal:
    """A command that runs in a session of its own."""

    def __init__(self, command: str, folder: Path, environment: Mapping[str, str], log: Path) -> None:
        self.command = command
        self._log = log
        with log.open("w") as output:
            self._process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def printed(self) -> str:
        return self._log.read_text(errors="replace")

    def check(self) -> None:
        if self._process.poll() is not None:
            raise CheckError(f"{self.command} has ended:\n{self.printed()[-3000:]}")

    def ctrl_c(self) -> None:
        """Press Ctrl-C, and wait until the command has ended. Raises `CheckError` if it does not."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            raise CheckError(f"{self.command} does not end with Ctrl-C:\n{self.printed()[-3000:]}") from None

    def close(self) -> None:
        with contextlib.suppress(CheckError):
            self.ctrl_c()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _path_without_ours() -> str:
    ours = str(Path(sys.prefix) / "bin")
    return os.pathsep.join(each for each in os.environ["PATH"].split(os.pathsep) if each != ours)


def commands(user: User) -> None:
    """The commands that need nothing else. Raises `CheckError`."""
    if not re.fullmatch(r"ehbalance \d+\.\d+\.\d+\S*\n", user.run("ehbalance --version")):
        raise CheckError("ehbalance --version prints no version")
    where = user.run("ehbalance jobs")
    if str(user.folder.parent / "venv") not in where:
        raise CheckError(f"ehbalance jobs names files outside the environment:\n{where}")
    if "--packages io.delta:delta-spark" not in user.run("ehbalance jobs --copy-to job"):
        raise CheckError("ehbalance jobs does not say which Delta the job needs")


def blocks(page: str, section: str) -> list[tuple[str, str]]:
    _, found, rest = page.partition(f"\n## {section}\n")
    if not found:
        raise CheckError(f"there is no section {section!r}")
    return re.findall(r"^```(\w+)\n(.*?)^```$", rest.partition("\n## ")[0], re.DOTALL | re.MULTILINE)


def first_stream(user: User, page: str, more: Callable[[User], None] | None) -> None:
    """Do what the quick start's section of the first stream says, and `more` with its hub. Raises `CheckError`."""
    lines: list[str] = []
    for language, text in blocks(page, FIRST_STREAM):
        if language == "python":
            program = re.match(r"# (\w+\.py)\n", text)
            if program is None:
                raise CheckError(f"a program's first line is not its name: {text[:80]}")
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
        _wait(lambda: "Emulator ready: " in hub.printed(), "the emulator is ready", hub)
        if f"Emulator ready: {value}\n" not in hub.printed():
            raise CheckError(f"the emulator does not print what the quick start exports, but {hub.printed()}")
        user.export(name, value)
        running = [terminals.enter_context(user.in_terminal(jobs[0]))]
        _wait(lambda: _shares(user) == [8], "the first job has all partitions", *running)
        running.append(terminals.enter_context(user.in_terminal(jobs[1])))
        _wait(lambda: _shares(user) == [4, 4], "two jobs have four partitions each", *running)
        for line in rest[:-1]:
            user.run(line)
        _wait(lambda: user.tried(COUNT).stdout == "800 events\n", "the table has 800 events", *running)
        say("800 events are in the table; Ctrl-C to the first job")
        running[0].ctrl_c()
        if "Traceback" in (said := SPARKS_OWN.sub("", running[0].printed())) or "stopped after" not in said:
            raise CheckError(f"the first job does not end in order:\n{running[0].printed()[-3000:]}")
        _wait(lambda: _shares(user) == [8], "the other job has all partitions", *running[1:])
        if more is not None:
            running[1].ctrl_c()
            more(user)


def a_test(tester: User, page: str) -> None:
    """Run the page's example of a test where of this package's dependencies there is only the client. Raises
    `CheckError`."""
    tester.make_environment()
    tester.run("pip install --quiet pytest azure-eventhub && pip install --quiet --no-deps spark-ehbalance")
    (_, example), (_, command), *_ = blocks(page, IN_TESTS)
    (tester.folder / example.partition("\n")[0].removeprefix("# ")).write_text(example)
    if not re.search(r"\b1 passed in", said := tester.run(command.strip())):
        raise CheckError(f"the emulator's example of a test does not pass:\n{said}")
    say(said.splitlines()[-1].strip("= "))


def _shares(user: User) -> list[int]:
    """How many partitions each owner has, if each has one."""
    answer = user.tried("ehbalance status leases/flights --json")
    if answer.returncode:
        return []  # no job has made the table yet
    owners = [each["owner"] for each in json.loads(answer.stdout)["partitions"]]
    return [] if None in owners else sorted(Counter(owners).values())


def job(user: User) -> None:
    """Run the copied job as `ehbalance jobs` says, to the end of what the hub has. Raises `CheckError`."""
    (line,) = [line for line in user.run("ehbalance jobs").splitlines() if "spark-submit" in line]
    submit = line.partition(" ")[2].replace(
        "spark-submit", "spark-submit --conf spark.ehbalance.job.trigger=availableNow"
    )
    submit = submit.replace(
        "--properties-file", "--conf spark.ehbalance.job.source.eventHubName=flights --properties-file"
    )
    user.run(f"cd job && {submit}")
    if user.run(COUNT.replace("data/flights", "job/data/events")) != "800 events\n":
        raise CheckError("the job has not written the 800 events")


def _wait(condition: Callable[[], bool], what: str, *terminals: Terminal) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        for terminal in terminals:
            terminal.check()
        if time.monotonic() > deadline:
            ends = "\n".join(f"{each.command}:\n{each.printed()[-2000:]}" for each in terminals)
            raise CheckError(f"waited {PATIENCE:g} s until {what}\n{ends}")
        time.sleep(1)


if __name__ == "__main__":
    main()
