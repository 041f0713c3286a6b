"""Where an output stands in its prediction and in itself, and what it says instead."""
