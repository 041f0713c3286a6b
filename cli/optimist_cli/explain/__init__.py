"""`optimist explain`: what was drafted for one request, from its log."""
