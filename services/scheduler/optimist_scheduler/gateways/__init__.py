"""The streams of gateways: commands in, outputs out."""
