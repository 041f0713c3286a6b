"""Texts as tokens: sources, vocabulary, and indexes of what follows what."""
