"""Weights and KV memory: forward and verify passes, acceptance."""

import os

# OpenMP's threads spin while they wait. Where they share cores with other processes, which they do
# with the other services on one machine, a pass then takes up to a hundred times longer (measured).
# The variable is read when PyTorch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
