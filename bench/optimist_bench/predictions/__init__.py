"""`optimist bench predictions`: how many passes each algorithm needs, simulated without a model."""
