"""Where a lease table may be kept: how long a request takes there, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests by what services charge for them: `writes` are PUT and LIST, `reads` are GET and HEAD, and `deletes` are
    free."""

    writes: int = 0
    reads: int = 0
    deletes: int = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(self.writes + other.writes, self.reads + other.reads, self.deletes + other.deletes)

    def __mul__(self, times: int) -> Requests:
        return Requests(self.writes * times, self.reads * times, self.deletes * times)

    @property
    def total(self) -> int:
        """All of them."""
        return self.writes + self.reads + self.deletes


#: An attempt to commit: PUT of the data file, and PUT of the log file on condition that it is not there.
COMMIT = Requests(writes=2)


@dataclass(frozen=True, slots=True)
class Service:
    """`latency` is the median of a request in seconds, `commit` that of a `COMMIT`. Prices are in US dollars per 10,000
    requests."""

    latency: float
    commit: float
    write_price: float = 0.0
    read_price: float = 0.0

    @staticmethod
    def remote(latency: float, write_price: float, read_price: float) -> Service:
        """A service on which all requests take as long."""
        return Service(latency, COMMIT.total * latency, write_price, read_price)


#: When the prices were written down.
PRICES_OF = "November 2026"

#: `local` is measured, on a disk, with 64 partitions. The latencies of the others are assumptions, for members in the
#: same region. Prices are list prices to check, without reductions: Azure Blob Storage hot LRS (with a flat namespace
#: 0.05 and 0.004 in many regions), S3 Standard in us-east-1, Cloud Storage Standard in one region (classes A and B).
SERVICES: Mapping[str, Service] = {
    "local": Service(0.000_03, 0.000_5),
    "azure": Service.remote(0.025, 0.065, 0.005),
    "s3": Service.remote(0.030, 0.05, 0.004),
    "gcs": Service.remote(0.040, 0.05, 0.004),
}
