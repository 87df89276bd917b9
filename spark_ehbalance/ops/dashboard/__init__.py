"""`ehbalance dashboard`: a page that shows groups while they run."""
