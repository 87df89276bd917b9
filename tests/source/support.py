"""What several of these tests need: a hub, options for it, and ways to look at what happened."""

from __future__ import annotations

from spark_ehbalance.emulator import Emulator
from spark_ehbalance.options import Options, stream_options

HUB = "hub"


def hub_options(emulator: Emulator, **raw: object) -> Options:
    """The options of a stream that reads `HUB`."""
    return stream_options({"connectionString": emulator.connection_string(HUB), **{k: str(v) for k, v in raw.items()}})
