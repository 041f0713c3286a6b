"""Grammars that outputs follow: masks, and drafts of what they say."""
