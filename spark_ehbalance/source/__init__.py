"""The Spark data source: options in, offsets and record batches out."""
