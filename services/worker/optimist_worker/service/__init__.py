"""The process, and the streams of plans that it serves."""
