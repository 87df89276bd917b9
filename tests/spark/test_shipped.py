"""Executors in separate processes receive the package through `--py-files`."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.docs.blocks import all_blocks
from tests.spark.shipping import (
    CONF,
    SPARK,
    environment,
    make_environment,
    make_zip,
    spark_submit,
)
from tests.spark.tables import events_in
from tests.spark.test_single_query import fill
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.spark, pytest.mark.xdist_group("own spark")]

_JOB = Path(__file__).with_name("shipped_job.py")


@contextmanager
def running(words: list[str], log: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file, subprocess.Popen(words, cwd=log.parent, env=env, stdout=file, stderr=file) as process:
        try:
            yield process
        finally:
            process.kill()


def test_standalone_cluster_receives_the_package(hub: Emulator, shared_options: dict[str, str], tmp_path: Path) -> None:
    """Runs the page's three commands with `--py-files`; neither the driver's Python nor the executors' has the package.
    A worker is killed after the first batch."""
    sent = fill(hub, 20)
    python = make_environment(tmp_path / "python")
    quick = {"SPARK_DAEMON_JAVA_OPTS": CONF["spark.executor.extraJavaOptions"], "SPARK_LOCAL_IP": "127.0.0.1"}
    env = environment(python, SPARK_HOME=str(SPARK), **quick)
    (block,) = (
        block for block in all_blocks() if block.detail.endswith("::test_standalone_cluster_receives_the_package")
    )
    master, worker, submit = block.text.replace("MASTER", "localhost").splitlines()
    port = ("--webui-port", "0")
    small = (*port, "--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / "work"))
    with ExitStack() as cluster:

        def start(log: str, words: list[str]) -> tuple[Path, subprocess.Popen[bytes]]:
            return tmp_path / log, cluster.enter_context(running(words, tmp_path / log, env))

        def spark_class(log: str, command: str, *more: str) -> tuple[Path, subprocess.Popen[bytes]]:
            return start(log, [*shlex.split(f"{SPARK}/bin/{command}"), *more])

        log, _ = spark_class("master.log", master.replace("7077", "0"), *port)
        found = wait_until(lambda: re.search(r"Starting Spark master at (\S+)", log.read_text()), "the master runs")
        worker, submit = (command.replace("spark://localhost:7077", found[1]) for command in (worker, submit))
        workers = [spark_class(f"worker{number}.log", worker, *small) for number in (1, 2)]
        for log, _ in workers:
            wait_until(lambda log=log: "Successfully registered" in log.read_text(), "the worker is known")

        package = make_zip(tmp_path / "spark_ehbalance.zip")
        shutil.copy(_JOB, tmp_path / "your_program.py")
        options = json.dumps({**shared_options, "maxEventsPerTrigger": "80"})
        log, driver = start("driver.log", spark_submit(*shlex.split(submit)[1:], options, str(tmp_path)))

        def has_written() -> bool:
            assert driver.poll() is None, log.read_text()
            return any((tmp_path / "target" / "_delta_log").glob("*.json"))

        wait_until(has_written, "the first batch is written", 300)
        workers[0][1].kill()
        assert driver.wait(300) == 0, log.read_text()
    assert len(list((tmp_path / "work").glob("app-*/*"))) >= 2, "both workers have run an executor"
    assert events_in(tmp_path / "target") == Counter(sent)
    used = json.loads(next(line for line in log.read_text().splitlines() if line.startswith('{"driver"')))
    assert used["driver"].startswith(str(package))
    assert used["executors"]
    assert all("spark_ehbalance.zip/" in file and not file.startswith(str(package)) for file, _ in used["executors"])
