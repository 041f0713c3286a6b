"""`optimist explain`: what the proposer did for one request, from its log."""
