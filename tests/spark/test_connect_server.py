"""A Spark Connect server whose Python lacks spark-ehbalance. Client and server share only disk and hub, as if on
different machines: the server has its own temporary folder, so the client cannot reach its planners' sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.lease_table.delta.store import DeltaStore
from tests.spark.shipping import environment, make_environment, make_zip, spark_submit
from tests.spark.tables import events_in
from tests.spark.test_single_query import fill
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.spark, pytest.mark.xdist_group("own spark")]

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a Spark Connect server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    conf = {"spark.connect.grpc.binding.port": str(port), "spark.connect.grpc.binding.address": "127.0.0.1"}
    python = make_environment(tmp_path / "python")
    with tempfile.TemporaryDirectory() as temporary:
        process = subprocess.Popen(
            spark_submit("--master=local[2]", f"--class={_SERVER}", "spark-internal", conf=conf),
            cwd=tmp_path,
            env=environment(python, TMPDIR=temporary),
            start_new_session=True,
        )

        def listens() -> bool:
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) == 0

        try:
            wait_until(listens, "the server listens")
            yield f"sc://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def test_client_brings_the_package_and_never_stops_its_session(
    hub: Emulator, shared_options: dict[str, str], server: str, tmp_path: Path
) -> None:
    def run(address: str, last: int, *package: str) -> dict[str, Any]:
        client = subprocess.run(
            [sys.executable, "-m", __name__, address, json.dumps(shared_options), str(tmp_path), str(last), *package],
            env={name: value for name, value in os.environ.items() if name != "SPARK_HOME"},
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            check=True,
        )
        result: dict[str, Any] = json.loads(client.stdout.splitlines()[-1])
        return result

    sent = fill(hub, 10)
    result = run(server, 9, str(make_zip(tmp_path / "spark_ehbalance.zip")))
    assert "No module named 'spark_ehbalance'" in result["without"]
    assert "addArtifacts" in result["without"]
    assert "no option 'nosuch'" in result["option"]
    assert result["batch"] == len(sent)
    sent = fill(hub, 10)
    run(f"{server}/;session_id={result['session']}", 19)  # a new client of the session
    assert events_in(tmp_path / "target") == Counter(sent)
    leases = DeltaStore(str(tmp_path / "leases")).read().leases.values()
    assert [lease.owner for lease in leases] == [None] * 8, "stop() has given all of them back"


def _main(address: str, options: dict[str, str], folder: Path, last: int, *package: str) -> dict[str, Any]:
    """The client; without `package`, the session already has it. `stop` checkpoints the batch that ends at `last`."""
    from pyspark.sql import SparkSession

    import spark_ehbalance

    spark: Any = SparkSession.builder.remote(address).getOrCreate()
    result = {"session": spark.session_id} | (_bring(spark, options, *package) if package else {})
    spark_ehbalance.register(spark)
    query = (
        spark.readStream.format("ehbalance")
        .options(**options)
        .load()
        .writeStream.format("delta")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="1 hour")
        .start(str(folder / "target"))
    )
    lag = wait_until(lambda: spark_ehbalance.lag(query), "the planner reports its lag")
    assert (len(lag.partitions), lag.events, lag.seconds) == (8, 0, 0.0)
    spark_ehbalance.stop(query)
    leases = DeltaStore(options["leaseTable"]).read().leases.values()
    assert [lease.checkpoint.sequence_number for lease in leases if lease.checkpoint] == [last] * 8
    return result


def _bring(spark: Any, options: dict[str, str], package: str) -> dict[str, Any]:
    """Bring the package to a server that lacks it; returns the results."""
    from pyspark.errors import PySparkException

    import spark_ehbalance
    from spark_ehbalance.errors import EhBalanceError

    result: dict[str, Any] = {}
    try:
        spark_ehbalance.register(spark)
    except EhBalanceError as error:
        result["without"] = str(error)
    spark.addArtifacts(package, pyfile=True)
    spark_ehbalance.register(spark)
    alone = {name: options[name] for name in ("connectionString", "startingPosition")}
    try:
        spark.read.format("ehbalance").options(**alone, nosuch="1").load().count()
    except PySparkException as error:
        result["option"] = str(error)
    result["batch"] = spark.read.format("ehbalance").options(**alone).load().count()
    return result


if __name__ == "__main__":
    address, options, folder, last, *package = sys.argv[1:]
    print(json.dumps(_main(address, json.loads(options), Path(folder), int(last), *package)), flush=True)
