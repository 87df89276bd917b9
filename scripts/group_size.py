"""How large a group one lease table carries: simulates cold starts of groups of several sizes at several latencies, and
prints the table of docs/operations.md. Takes some minutes.

    python scripts/group_size.py [--latency MS]... [--size MEMBERSxPARTITIONS]...
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from spark_ehbalance.simulation.run import simulate
from spark_ehbalance.simulation.scenario import StoreSettings, load

#: Milliseconds a request: a local disk, a storage account in the same region, one far away.
LATENCIES = (1.0, 25.0, 100.0)

SIZES = ("20x128", "50x512", "100x1024", "200x2000")

#: Balance intervals: 10 minutes.
CYCLES = 60


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, action="append", help="milliseconds a request")
    parser.add_argument("--size", action="append", help="members x partitions, as 100x1024")
    arguments = parser.parse_args()
    print("| a request | members × partitions | balanced after | needless takes | lease duration | requests a day |")
    print("|---|---|---|---|---|---|")
    for latency in arguments.latency or LATENCIES:
        for size in arguments.size or SIZES:
            print(row(latency, *map(int, size.split("x"))), flush=True)


def row(latency: float, members: int, partitions: int) -> str:
    """The row of a group whose members start at the same moment, with the strategy `cooperative`."""
    store = StoreSettings(service="azure", latency=latency / 1000)
    start = replace(load("start-up"), members=members, partitions=partitions, cycles=CYCLES, store=store)
    result = simulate(start, "cooperative")
    seconds = result.seconds_to_balance
    # Nobody dies: what is claimed from an owner had expired, or its handover was overdue.
    taken = sum(each.event == "Claim" and each.owner_before not in (None, each.owner) for each in result.changes)
    balanced = "never" if seconds is None else f"{seconds:.0f} s"
    requests = result.operations_per_day / 1e6
    return (
        f"| {latency:g} ms | {members} × {partitions:,} | {balanced} | {taken} "
        f"| {result.lease_duration:.0f} s | {requests:.1f} million |"
    )


if __name__ == "__main__":
    main()
