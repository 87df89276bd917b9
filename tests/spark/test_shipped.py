"""The package comes to the executors by `--py-files` or `--archives`: executors are processes of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pytest

from spark_ehbalance.emulator import Emulator
from tests.spark.shipping import environment, make_archive, make_environment, make_zip, spark_home, spark_submit
from tests.spark.test_single_query import fill

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("own spark")]

_JOB = Path(__file__).with_name("shipped_job.py")


def submit(python: Path, options: dict[str, str], folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the job in `folder`; returns what it prints."""
    job = shutil.copy(_JOB, folder)  # else the folder of the tests were on Python's path
    result = subprocess.run(
        spark_submit(*arguments, str(job), json.dumps(options), str(folder)),
        cwd=folder,
        env=environment(python, SPARK_HOME=str(spark_home(folder / "spark"))),
        stdout=subprocess.PIPE,
        text=True,
        timeout=420,
        check=True,
    )
    printed: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return printed


def held(folder: Path) -> Counter[tuple[str, int]]:
    table = deltalake.DeltaTable(str(folder / "target")).to_pyarrow_table(columns=["partition", "sequenceNumber"])
    return Counter(zip(table["partition"].to_pylist(), table["sequenceNumber"].to_pylist(), strict=True))


def test_py_files(hub: Emulator, shared_options: dict[str, str], tmp_path: Path) -> None:
    """Neither the driver's Python nor the executors' have the package."""
    sent = fill(hub, 10)
    package = make_zip(tmp_path / "spark_ehbalance.zip")
    python = make_environment(tmp_path / "python", package=False)
    used = submit(python, shared_options, tmp_path, "--master=local-cluster[1,2,1024]", f"--py-files={package}")
    assert held(tmp_path) == Counter(sent)
    assert used["driver"].startswith(str(package))
    assert used["executors"]
    assert all("spark_ehbalance.zip/" in file and not file.startswith(str(package)) for file, _ in used["executors"])


def test_an_archive(hub: Emulator, shared_options: dict[str, str], tmp_path: Path) -> None:
    """The environment is unpacked where the driver starts, under the name that it gets on the executors, so that one
    relative path leads everywhere to a Python."""
    sent = fill(hub, 10)
    make_environment(tmp_path / "environment", package=True)
    archive = make_archive(tmp_path / "environment.tar.gz", tmp_path / "environment")
    options = (f"--archives={archive}#environment", "--master=local-cluster[2,1,1024]")
    used = submit(Path("environment/bin/python"), shared_options, tmp_path, *options)
    assert held(tmp_path) == Counter(sent)
    assert used["driver"].startswith(f"{tmp_path}/environment/")
    assert len(used["executors"]) == 2
    for file, python in used["executors"]:
        assert Path(file).is_relative_to(tmp_path / "spark" / "work")
        assert "/environment/" in file
        assert python.endswith("environment/bin/python")
