"""The command `optimist`: starts services, talks to them, measures them."""
