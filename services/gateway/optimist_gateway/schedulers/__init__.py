"""The connection to schedulers: requests go there, outputs come back."""
