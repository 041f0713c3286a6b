"""Where drafts come from besides predictions: draft models, heads and the request itself."""
