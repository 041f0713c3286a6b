"""`optimist bench hybrid`: what it costs to take drafts back in recurrent layers."""
