"""The weights of candidates, how they are laid out, and what is common in texts of models."""
