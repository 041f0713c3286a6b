"""Columns, outputs and counters: values that everything else is made of."""
