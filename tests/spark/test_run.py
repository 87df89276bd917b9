"""`spark_ehbalance.run` and signals: a program in its own process group whose query runs three times."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_ehbalance.emulator import Emulator
from tests.spark.settings import SETTINGS
from tests.spark.tables import events_in
from tests.spark.test_single_query import fill
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.spark, pytest.mark.xdist_group("own spark")]

#: Spark's daemon sometimes prints this when it uses a Unix socket; see docs/troubleshooting.md.
SPARKS_OWN = re.compile(r"Traceback \(most recent call last\):\n(?:  File .*daemon\.py.*\n)+BrokenPipeError: .*\n")

ORDERLY = ["for the batch to end", "handed over", "stopped after"]


def test_first_signal_ends_a_query_gracefully_and_the_second_immediately(
    hub: Emulator, shared_options: dict[str, str], tmp_path: Path
) -> None:
    log, hold, held_up, target = (tmp_path / name for name in ("log", "hold", "held_up", "target"))
    hold.touch()
    fill(hub, 10)
    with log.open("w") as output:
        program = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(shared_options), str(tmp_path)],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
            stderr=output,
            start_new_session=True,
        )

    def wait_for(condition: Callable[[], object], what: str) -> None:
        wait_until(lambda: condition() or program.poll() is not None, what)
        assert program.poll() is None, log.read_text()

    def logged(*texts: str, run: int) -> bool:
        output = (*log.read_text().split("-- run"), "", "", "")[run]
        return all(text in output for text in texts)

    try:
        wait_for(held_up.exists, "the first batch is being written")
        os.killpg(program.pid, signal.SIGINT)
        wait_for(lambda: logged("SIGINT: waiting", run=1), "it logs the signal")
        held_up.unlink()
        hold.unlink()
        wait_for(lambda: log.read_text().count("-- run") == 2, "run has returned, and runs again")
        assert logged(*ORDERLY, run=1)

        everything = fill(hub, 10)
        wait_for(lambda: events_in(target) == Counter(everything), "each event is written once, by both runs together")
        wait_for(lambda: logged("8 of 8 partitions · 80 events · 0 behind", run=2), "it shows its progress")
        hold.touch()
        everything = fill(hub, 10)
        wait_for(held_up.exists, "another batch is being written")
        os.killpg(program.pid, signal.SIGTERM)
        wait_for(lambda: logged("SIGTERM: waiting", run=2), "it logs the signal")
        held_up.unlink()
        hold.unlink()
        wait_for(lambda: log.read_text().count("-- run") == 3, "run has returned, and runs again")
        assert logged(*ORDERLY, run=2), "JVM and planner have left it to the driver"
        assert events_in(target) == Counter(everything)
        assert "Traceback" not in SPARKS_OWN.sub("", log.read_text()), log.read_text()

        hold.touch()
        fill(hub, 10)
        wait_for(held_up.exists, "another batch is being written")
        program.send_signal(signal.SIGTERM)
        wait_for(lambda: logged("SIGTERM: waiting", run=3), "it logs the signal")
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 128 + signal.SIGTERM
        assert events_in(target) == Counter(everything)
        assert "Traceback" not in SPARKS_OWN.sub("", log.read_text()), log.read_text()
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()


def _main(options: dict[str, str], folder: Path) -> None:
    from pyspark.sql import DataFrame, SparkSession

    import spark_ehbalance

    def write(df: DataFrame, batch_id: int) -> None:
        if (folder / "hold").exists():
            (folder / "held_up").touch()
            while (folder / "hold").exists():
                time.sleep(0.05)
        df.select("partition", "sequenceNumber").write.format("delta").mode("append").save(str(folder / "target"))

    spark = SparkSession.builder.master("local[2]").config(map=SETTINGS).getOrCreate()
    spark_ehbalance.register(spark)
    for _ in range(3):
        events = spark.readStream.format("ehbalance").options(**options).load()
        writer = events.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
        print("-- run", file=sys.stderr, flush=True)
        spark_ehbalance.run(writer.start(), timeout=120)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]), Path(sys.argv[2]))
