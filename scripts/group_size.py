"""How large a group one lease table carries: simulates cold starts of groups of several sizes at several latencies, and
prints the table of docs/sizing.md, which `python scripts/write_tables.py --simulated` writes there. With --grow it
simulates groups that grow, and prints what each strategy takes from living members. Takes some minutes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from spark_ehbalance.leases.history import OwnershipChange
from spark_ehbalance.simulation.measures import Result
from spark_ehbalance.simulation.run import simulate
from spark_ehbalance.simulation.scenario import Event, StoreSettings, load
from spark_ehbalance.strategies import STRATEGIES

#: Milliseconds a request: a storage account in the same region, one far away.
LATENCIES = (25.0, 100.0)

SIZES = ("20x128", "50x512", "100x1024", "200x2000")

#: Balance intervals: 10 minutes.
CYCLES = 60


HEAD = ("a request", "members × partitions", "balanced after", "needless takes", "lease duration", "requests a day")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grow", action="store_true", help="a group that grows at 100 ms a request, by each strategy")
    if parser.parse_args().grow:
        _print("strategy", "20 → 100 members", "last take after a kill", "cold start of 100")
        for strategy in STRATEGIES:
            _print(*growing(strategy))
        return
    _print(*HEAD)
    for latency in LATENCIES:
        for size in SIZES:
            _print(*group_size(latency, size))


def _print(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def group_size(latency: float, size: str) -> tuple[str, ...]:
    """The row of a group whose members start at the same moment, with the strategy `cooperative`."""
    members, partitions = map(int, size.split("x"))
    store = StoreSettings(service="azure", latency=latency / 1000)
    start = replace(load("start-up"), members=members, partitions=partitions, cycles=CYCLES, store=store)
    result = simulate(start, "cooperative")
    seconds = result.seconds_to_balance
    taken = len(takes(result))  # nobody dies
    balanced = "never" if seconds is None else f"{seconds:.0f} s"
    requests = result.operations_per_day / 1e6
    group = f"{members} × {partitions:,}"
    return f"{latency:g} ms", group, balanced, str(taken), f"{result.lease_duration:.0f} s", f"{requests:.1f} million"


def growing(strategy: str) -> tuple[str, ...]:
    """The row of a strategy: 80 members join 20, one is killed ten minutes later; 100 start at the same moment."""
    start = replace(load("start-up"), partitions=1024, cycles=150, store=StoreSettings(latency=0.1))
    events = (Event(at=300.0, do="join", count=80), Event(at=900.0, do="crash"))
    grown = simulate(replace(start, members=20, events=events), strategy)
    (_, dead) = grown.marks[-1][1].split()
    needless = [each for each in takes(grown) if each.owner_before != dead]
    of_dead = [(each.at_ms - grown.began_ms) / 1000 - 900 for each in takes(grown) if each.owner_before == dead]
    cold = simulate(replace(start, members=100, cycles=CYCLES), strategy)
    last = f"{max(of_dead):.0f} s" if of_dead else "it had none"
    return f"`{strategy}`", str(len(needless)), last, str(len(takes(cold)))


def takes(result: Result) -> list[OwnershipChange]:
    """What was claimed from an owner: it had expired, or its handover was overdue."""
    return [each for each in result.changes if each.event == "Claim" and each.owner_before not in (None, each.owner)]


if __name__ == "__main__":
    main()
