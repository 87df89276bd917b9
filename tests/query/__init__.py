"""Tests of the data source: options in, offsets and record batches out. No Spark session is started."""
