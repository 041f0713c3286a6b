"""`optimist bench windows`: what proposers cost on the way from one pass to the next."""
