"""What others were broken by, tried on this system."""
