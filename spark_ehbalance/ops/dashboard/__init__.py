"""`ehbalance dashboard`: the web page of groups."""
