"""The short matrix: what must work with every version of Spark, tested with each: `make test-matrix`."""
