"""A model that edits: what it is asked, what it learns from, and how an adapter is trained."""
