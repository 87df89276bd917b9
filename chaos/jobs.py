"""Runs each job by the command that its documentation names, and checks its result row by row: once to its end on a
Spark with executors of their own, and once with a SIGKILL in the middle of its work, and then again to the end."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pyspark
import typer

from chaos.job_cases import CASES, Case
from chaos.processes import kill_session
from chaos.results import finish, log, print_table
from chaos.session import SOON
from spark_ehbalance.emulator import Emulator

ROOT = Path(__file__).parents[1]

#: Two executors, each a process with a core and 1 GB.
CLUSTER, LOCAL = "local-cluster[2,1,1024]", "local[2]"

#: What `--short` runs on a cluster, and what it kills.
SHORT_CLUSTER, SHORT_KILLED = ("stream_to_delta", "group_report"), ("stream_to_delta", "maintain_leases")

#: Seconds from one line of progress to the next, and for a whole run on a busy machine.
_PROGRESS, _TIMEOUT = 10.0, 420.0

#: Attempts to kill a job in the middle: on a busy machine it may be over before it was seen.
_ATTEMPTS = 3


class JobError(Exception):
    """A job has not done what it should; the text says what."""


@dataclass
class Outcome:
    """One row of the results."""

    job: str
    how: str
    seconds: float = 0.0
    result: str = ""
    wrong: list[str] = field(default_factory=list)


def spark_home(folder: Path) -> Path:
    """A Spark that is the installed one, but has its workers' folders in `folder`."""
    if not folder.exists():
        folder.mkdir()
        for each in Path(pyspark.__file__).parent.iterdir():
            (folder / each.name).symlink_to(each)
    return folder


class Submitted:
    """A job that runs, in a session of its own."""

    def __init__(self, case: Case, master: str, home: Path, log_file: Path) -> None:
        settings = {f"spark.ehbalance.job.{name}": value for name, value in case.settings().items()}
        java = f"-Dlog4j2.configurationFile=conf/log4j2.properties -XX:+UseSerialGC {SOON}"
        quick = {
            "spark.driver.extraJavaOptions": f"{java} -Djava.io.tmpdir={home.parent}",
            "spark.executor.extraJavaOptions": f"-XX:+UseSerialGC {SOON}",
            "spark.sql.warehouse.dir": f"{home.parent}/warehouse",
            "spark.local.dir": f"{home.parent}/local",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "2",
        }
        conf = [word for name, value in (settings | quick).items() for word in ("--conf", f"{name}={value}")]
        files = ["--properties-file", f"conf/{case.name}.conf"]
        self.command = [f"{home}/bin/spark-submit", *files, "--master", master, *conf, f"jobs/{case.name}.py"]
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_HOME": str(home)}
        self._log = log_file
        with log_file.open("ab") as out:
            self._process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env={**os.environ, **python, "SPARK_LOCAL_IP": "127.0.0.1", **case.environment()},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Send SIGKILL to the driver, the JVM, the executors, the planner and the workers."""
        kill_session(self._process.pid)
        self._process.wait()

    def check_code(self) -> None:
        """Raise `JobError` unless it has ended with exit code 0."""
        if self.code:
            last = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()][-8:]
            raise JobError("\n    ".join([f"exit code {self.code}: {shlex.join(self.command)}", *last]))


class Runs:
    """All runs, whose files are in `folder`. Leave it, and no job runs any more."""

    def __init__(self, folder: Path, emulator: Emulator) -> None:
        self._folder, self._emulator = folder, emulator
        self._running: Submitted | None = None
        self._number = 0
        self._began = time.monotonic()

    def close(self) -> None:
        """Kill the job that runs."""
        if self._running is not None and self._running.code is None:
            self._running.kill()

    def to_the_end(self, kind: type[Case], master: str) -> Outcome:
        """Run a job to its end, and check what it has made."""

        def run(outcome: Outcome) -> None:
            case = self._case(kind)
            self._run(case, master)
            outcome.result, outcome.wrong = case.check()

        return self._outcome(Outcome(kind.name, master), run)

    def killed(self, kind: type[Case], master: str) -> Outcome:
        """Kill a job in the middle of its work, run it again to the end, and check what both have made."""

        def run(outcome: Outcome) -> None:
            for _ in range(_ATTEMPTS):
                case = self._case(kind)
                self._run(case, master, lambda case=case: 0 < case.done()[0] < case.done()[1])  # type: ignore[misc]
                done, of = case.done()
                if 0 < done < of:
                    break
                log(f"  {kind.name}: it was over before it could be killed, once more")
            else:
                raise JobError(f"in {_ATTEMPTS} attempts it was over before it could be killed")
            case.killed = True
            log(f"  {kind.name}: SIGKILL after {done:,} of {of:,}, and again")
            self._run(case, master)
            result, outcome.wrong = case.check()
            outcome.result = f"{result}; killed after {done:,} of {of:,}"

        return self._outcome(Outcome(kind.name, f"{master}, SIGKILL"), run)

    def _outcome(self, outcome: Outcome, run: Callable[[Outcome], None]) -> Outcome:
        began = time.monotonic()
        log(f"{began - self._began:.0f} s: {outcome.job} on {outcome.how}")
        try:
            run(outcome)
        except (JobError, TimeoutError) as error:
            outcome.wrong = [str(error)]
        outcome.seconds = time.monotonic() - began
        for line in outcome.wrong[:5]:
            log(f"  WRONG: {line}")
        return outcome

    def _case(self, kind: type[Case]) -> Case:
        self._number += 1
        folder = self._folder / f"{kind.name.replace('_', '-')}-{self._number}"
        folder.mkdir()
        return kind(folder, self._emulator)

    def _run(self, case: Case, master: str, until: Callable[[], bool] | None = None) -> None:
        """Run the job to its end, or kill it as soon as `until` holds. Raises `JobError` if it fails or hangs."""
        began = shown = time.monotonic()
        home = spark_home(self._folder / "spark")
        self._running = job = Submitted(case, master, home, self._folder / f"{case.folder.name}.log")
        try:
            while job.code is None:
                if until is not None and until():
                    job.kill()
                    return
                if (now := time.monotonic()) - began > _TIMEOUT:
                    raise JobError(f"it has not ended within {_TIMEOUT:g} s: {shlex.join(job.command)}")
                if now - shown > _PROGRESS:
                    shown = now
                    log("  {}: {:.0f} s, {:,} of {:,}".format(case.name, now - began, *case.done()))
                time.sleep(case.look)
        finally:
            self.close()
        job.check_code()


def main(
    short: Annotated[bool, typer.Option("--short", help="Two jobs on a cluster, and two kills.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="A job's name. Repeatable; by default all.")] = None,
    keep: Annotated[Path | None, typer.Option(help="A new folder that keeps logs and tables.")] = None,
) -> None:
    """Run all jobs, also with a kill, and check every row that they make."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cases = [each for each in CASES if not only or each.name in only]
    if missing := {*(only or ())} - {each.name for each in CASES}:
        raise typer.BadParameter(f"there is no job {missing.pop()}: there are {', '.join(each.name for each in CASES)}")
    with ExitStack() as stack:
        if keep is not None:
            keep.mkdir(parents=True)
        temporary = tempfile.TemporaryDirectory(prefix="ehbalance-jobs-", ignore_cleanup_errors=True)
        folder = keep.absolute() if keep else Path(stack.enter_context(temporary))
        emulator = stack.enter_context(Emulator({"unused": 1}))
        runs = Runs(folder, emulator)
        stack.callback(runs.close)
        outcomes = [runs.to_the_end(each, CLUSTER) for each in cases if not short or each.name in SHORT_CLUSTER]
        outcomes += [runs.killed(each, LOCAL) for each in cases if not short or each.name in SHORT_KILLED]
    rows = [
        (
            each.job,
            each.how,
            f"{each.seconds:.0f} s",
            each.result,
            f"{len(each.wrong)} wrong" if each.wrong else "right",
        )
        for each in outcomes
    ]
    print_table(("job", "how", "time", "result", ""), rows, "jobs")
    finish(not any(each.wrong for each in outcomes))


if __name__ == "__main__":
    typer.run(main)
