"""`optimist bench pipeline`: one worker and a model in stages."""
