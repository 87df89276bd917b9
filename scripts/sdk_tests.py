"""Run azure-eventhub's own live tests against the emulator: `make sdk-tests ARGS="-k send"`.

They come from the source distribution of the installed version; nothing of them is kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "emulator" / "sdks" / "azure_eventhub_fixtures.py"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ehbalance-sdk-") as folder:
        wanted = ["--no-deps", "--no-binary", ":all:", f"azure-eventhub=={version('azure-eventhub')}"]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "-d", folder, *wanted], check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as found:
            found.extractall(folder, filter="data")
        (tests,) = Path(folder).glob("*/tests")
        shutil.copy(FIXTURES, tests / "conftest.py")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--disable-warnings",
            "--rootdir",
            str(tests),
        ]
        # They wait most of the time.
        command += ["--numprocesses=8", "livetest", "pyamqp_tests/synctests", "pyamqp_tests/asynctests", *sys.argv[1:]]
        return subprocess.run(command, cwd=tests, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
