"""`optimist serve`: all services as processes of this machine."""
