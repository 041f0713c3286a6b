"""`optimist bench forms`: how much of structured answers their form already says."""
