"""What outputs are expected to go on with."""
