"""The command `ehbalance`."""

try:
    from spark_ehbalance.ops.main import main
except KeyboardInterrupt:  # the imports take a second
    raise SystemExit(130) from None

__all__ = ["main"]
