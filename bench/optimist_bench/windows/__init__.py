"""`optimist bench windows`: what a window of drafts costs on its way."""
