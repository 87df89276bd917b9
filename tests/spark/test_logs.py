"""The logs of planners and workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

#: Like Spark's worker, which has `capture_outputs` since 4.1.
PROGRAM = """
import logging
from pyspark.logger.worker_io import capture_outputs
from spark_ehbalance.spark.logs import set_up_logging

logger = logging.getLogger("spark_ehbalance.query")
for task in (1, 2):
    with capture_outputs():
        set_up_logging()
        logger.warning("captured %d", task)
logger.warning("afterwards")
"""


@pytest.mark.parametrize("level", ["", "INFO", "nonsense"])
def test_spark_workers_log_every_line_once_with_its_level(level: str) -> None:
    environment = os.environ | {"PYSPARK_SPARK_SESSION_UUID": "session", "EHBALANCE_LOG_LEVEL": level}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    captured = [json.loads(line.split(":", 2)[2]) for line in done.stdout.splitlines() if "captured" in line]
    assert [(line["level"], line["msg"]) for line in captured] == [("WARNING", "captured 1"), ("WARNING", "captured 2")]
    assert done.stderr.count("captured") == 0
    (line,) = done.stderr.splitlines()
    assert line == "afterwards" if level != "INFO" else line.endswith(": afterwards")
