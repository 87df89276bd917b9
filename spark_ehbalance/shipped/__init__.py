"""The jobs for spark-submit and their settings.

They are at the top of the repository; a wheel has them in this folder (`sources` in pyproject.toml).
"""

from __future__ import annotations

from pathlib import Path

from spark_ehbalance.errors import EhBalanceError


def folder() -> Path:
    """The folder with `jobs/` and `conf/`. Raises `EhBalanceError` if it is missing, as in an archive of modules."""
    here = Path(__file__).resolve().parent
    for root in (here, here.parents[1]):
        if (root / "jobs/stream_to_delta.py").is_file():
            return root
    problem = "this copy of the package is without the jobs, which the wheel and the repository contain"
    raise EhBalanceError("EHB_CALL_INVALID", function="shipped.folder", problem=problem)
