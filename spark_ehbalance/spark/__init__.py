"""What Spark and a driver program call: the data source, the listener, and how queries run, stop and report their lag.

This file imports nothing, because workers import modules of this package too.
"""
