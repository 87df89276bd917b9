"""The command `ehbalance`."""

from spark_ehbalance.cli.main import main

__all__ = ["main"]
