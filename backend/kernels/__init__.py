"""Triton kernels of the GPU path, one file a subject, each with a launcher and a torch reference (`reference.py`).

Kernels upcast what they load and accumulate in float32. What a launch compiles follows from shapes and types alone
(`tiles.py`): nothing is tuned while it runs.
"""
