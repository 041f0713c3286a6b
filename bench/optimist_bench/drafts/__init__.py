"""`optimist bench drafts`: drafters and peers answer the same prompts."""
