"""Draft networks that read the target's hidden states: Medusa and EAGLE heads, and their files."""
