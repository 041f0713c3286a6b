"""The proposer's parameters, from edits."""
