"""`optimist bench apply`: models that merge an edit into a file, with and without prediction."""
