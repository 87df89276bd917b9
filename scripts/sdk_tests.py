"""Run azure-eventhub's own live tests against the emulator: `make sdk-tests ARGS="-k send"`.

The tests come from the source distribution of the installed version, and use this project's fixtures. They are not
copied into this repository. With `--short` as the first argument, only the tests of the synchronous client run that do
not sleep for a minute.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "emulator" / "sdks" / "azure_eventhub_fixtures.py"

#: The packages that the tests need in addition to azure-eventhub. Their folder comes before .venv on the path, so it
#: must be complete.
TOOLS = (
    "aiohttp==3.14.5",
    "azure-eventhub-checkpointstoreblob",
    "azure-eventhub-checkpointstoreblob-aio==1.2.0",
    "pytest-asyncio==1.5.0",
)

#: Number of test processes. There are many because they wait most of the time.
PROCESSES = 12

TESTS = ("livetest", "pyamqp_tests/synctests", "pyamqp_tests/asynctests")
SHORT = ("livetest/synctests", "pyamqp_tests/synctests")
LONG = ("long_sleep", "long_interval", "invalid_credential", "invalid_hostname", "event_position", "buffered")


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="ehbalance-sdk-") as folder:
        tools = Path(folder, "tools")
        pip("install", "-c", ROOT / "constraints.txt", "--target", tools, *TOOLS)
        pip("download", "-d", folder, "--no-deps", "--no-binary=:all:", f"azure-eventhub=={version('azure-eventhub')}")
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as found:
            found.extractall(folder, filter="data")
        (tests,) = Path(folder).glob("*/tests")
        shutil.copy(FIXTURES, tests / "conftest.py")
        command = [sys.executable, "-m", "pytest", "--disable-warnings", "-p", "no:cacheprovider", "--rootdir", tests]
        if arguments[:1] == ["--short"]:
            without_long = " and ".join(f"not {name}" for name in LONG)
            command += ["--numprocesses=4", *SHORT, "-k", without_long, *arguments[1:]]
        else:
            command += [f"--numprocesses={PROCESSES}", "--dist=worksteal", *TESTS, *arguments]
        environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tools}"}
        return subprocess.run(command, cwd=tests, env=environment, check=False).returncode


def pip(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
