"""`ehbalance dashboard`: a web page that shows groups."""
