"""What Spark and a driver program call: the data source, the listener, and how queries run, stop and report their lag.

Workers import modules of this room too: so this file imports nothing.
"""
