"""What happened to a scheduler, in a file."""
