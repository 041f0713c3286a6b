"""Kernels for the CPU in C++, compiled once; where there is no compiler, PyTorch computes."""
