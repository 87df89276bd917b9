"""`make run`: two processes of jobs/stream_to_delta.py share a hub of the emulator, and then their rows are counted."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from deltalake import DeltaTable

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.lease_table.backends import open_store

HUB, PARTITIONS, EVENTS = "flights", 8, 20_000

#: Time limit in seconds. It is long because two Sparks start, possibly on only two cores.
LIMIT = 300.0


def start(number: int, folder: Path, connection_string: str) -> subprocess.Popen[bytes]:
    """Start a job with its own checkpoint. It stops gracefully on SIGTERM."""
    settings = {
        "job.table": folder / "events",
        "job.checkpointLocation": folder / f"checkpoint-{number}",
        "job.source.leaseTable": folder / "leases",
        "job.source.ownerId": f"job-{number}",
    }
    command = [Path(sys.executable).with_name("spark-submit"), "--master", "local[1]"]
    command += ["--properties-file", "conf/stream_to_delta.conf"]
    for name, value in settings.items():
        command += ["--conf", f"spark.ehbalance.{name}={value}"]
    environment = os.environ | {"EHBALANCE_CONNECTION_STRING": connection_string}
    return subprocess.Popen([*map(str, command), "jobs/stream_to_delta.py"], env=environment)


def rows(table: Path) -> list[tuple[str, int]]:
    """The partition and the sequence number of each row."""
    if not DeltaTable.is_deltatable(str(table)):
        return []
    found = DeltaTable(table).to_pyarrow_table(columns=["partition", "sequenceNumber"])
    return list(zip(found["partition"].to_pylist(), found["sequenceNumber"].to_pylist(), strict=True))


def owners(leases: Path) -> Counter[str | None]:
    """The number of partitions that each job owns."""
    with open_store(str(leases)) as store:
        return Counter(lease.owner for lease in store.read().leases.values()) if store.exists() else Counter()


def main() -> int:
    began, shown, shared = time.monotonic(), "", False
    with tempfile.TemporaryDirectory(prefix="ehbalance-run-") as temporary, Emulator({HUB: PARTITIONS}) as emulator:
        folder, total = Path(temporary), PARTITIONS * EVENTS
        jobs = [start(number, folder, emulator.connection_string(HUB)) for number in (1, 2)]
        try:
            while len(read := rows(folder / "events")) < total or not shared:
                if time.monotonic() - began > LIMIT or any(job.poll() is not None for job in jobs):
                    print("FAILED: a job has ended, or it took too long")
                    return 1
                owned = owners(folder / "leases")
                if owned.keys() >= {"job-1", "job-2"} and not shared:
                    shared = True
                    for partition in range(PARTITIONS):
                        emulator.append(HUB, partition, [b"a flight"] * EVENTS)
                shares = [f"{job} owns {owned[job]}" for job in sorted(filter(None, owned))]
                if (line := ", ".join([*shares, f"{len(read):,} of {total:,} rows"])) != shown:
                    print(f"{time.monotonic() - began:5.1f} s  {line}", flush=True)
                    shown = line
                time.sleep(1)
        finally:
            for job in jobs:
                job.terminate()
            for job in jobs:
                job.wait()
        read = rows(folder / "events")
    missing, doubled = total - len(set(read)), len(read) - len(set(read))
    print(f"{'FAILED' if missing or doubled else 'OK'}: {len(read):,} rows, {missing} missing, {doubled} doubled")
    return bool(missing or doubled)


if __name__ == "__main__":
    sys.exit(main())
