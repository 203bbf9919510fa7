"""Instruments of maintainers: a device without a GPU, and proofs on a real one."""
