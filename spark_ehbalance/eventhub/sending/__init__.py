"""RowEncoder → events → the hub: what `df.write` and `df.writeStream` do."""
