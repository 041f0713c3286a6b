"""`optimist bench overlap`: what planning ahead of results is worth."""
