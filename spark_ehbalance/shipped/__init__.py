"""What is shipped beside the code: the jobs for spark-submit and their settings.

They stand at the top of the repository; a wheel has them in this folder (`sources` in pyproject.toml).
"""

from __future__ import annotations

from pathlib import Path

from spark_ehbalance.errors import EhBalanceError

#: The job that `ehbalance demo` runs.
STREAM_TO_DELTA = "stream_to_delta"

#: Below `folder`, as what the next two functions return.
LOG4J = Path("conf/log4j2.properties")


def job(name: str = STREAM_TO_DELTA) -> Path:
    """The job's program."""
    return Path(f"jobs/{name}.py")


def conf(name: str = STREAM_TO_DELTA) -> Path:
    """The job's settings."""
    return Path(f"conf/{name}.conf")


def folder() -> Path:
    """The folder with `jobs/` and `conf/`. Raises `EhBalanceError` if there is none, as in an archive of modules."""
    here = Path(__file__).resolve().parent
    for each in (here, here.parents[1]):
        if (each / job()).is_file() and (each / conf()).is_file():
            return each
    raise EhBalanceError("the jobs are in the wheel and in the repository, and not beside this copy of the package")
