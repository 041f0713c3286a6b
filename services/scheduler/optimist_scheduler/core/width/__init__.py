"""How much each request drafts."""
