"""The code that Spark and driver programs call: the data source, the listener, and functions to run queries, stop them
and get their lag.

This file imports nothing, because workers import modules of this package, which would load everything imported here.
"""
