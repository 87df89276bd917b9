"""Checks that run with each supported Spark: `make test-matrix`."""
