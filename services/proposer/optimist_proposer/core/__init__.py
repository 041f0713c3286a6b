"""Decisions of the proposer: plain values in, plain values out."""
