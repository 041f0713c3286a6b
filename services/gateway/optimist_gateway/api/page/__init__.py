"""The page at `/`: a prediction at work, in the browser."""
