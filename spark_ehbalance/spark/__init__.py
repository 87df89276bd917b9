"""The code that Spark and driver programs call: the data source, the listener, and functions to run queries, stop them
and get their lag.

This file imports nothing, because a worker that imports a module of this package also loads everything imported here.
"""
