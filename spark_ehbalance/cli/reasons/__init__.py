"""Why partitions are read or not: what `ehbalance explain` answers. Pure: `facts` in, `findings` out."""
