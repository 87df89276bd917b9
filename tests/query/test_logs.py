"""Log lines as JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from pyspark.logger.logger import SPARK_LOG_SCHEMA

PROGRAM = """
from spark_ehbalance.spark.logs import set_up_logging
from spark_ehbalance.text import logger
set_up_logging()
log = logger("spark_ehbalance.x")
log.warning("owner %s", "a\\nb")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
"""


def test_lines_are_json_with_the_fields_of_sparks_structured_logs() -> None:
    environment = os.environ | {"EHBALANCE_LOG_FORMAT": "json", "EHBALANCE_LOG_LEVEL": "INFO", "TZ": "Asia/Tokyo"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, env=environment)
    first, second = map(json.loads, done.stderr.splitlines())
    fields = set(re.findall(r"(?:^|, )(\w+) ", re.sub(r"<.*?>+", "", SPARK_LOG_SCHEMA)))
    assert first.keys() | {"exception"} == second.keys() == fields
    assert first["msg"] == "owner a\\nb"
    assert (first["level"], first["logger"]) == ("WARNING", "spark_ehbalance.x")
    assert first["context"] == {"thread": "MainThread"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["ts"])
    assert second["exception"]["class"] == "ZeroDivisionError"
