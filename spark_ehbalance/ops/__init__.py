"""The command `ehbalance`."""

from spark_ehbalance.ops.main import main

__all__ = ["main"]
