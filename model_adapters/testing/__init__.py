"""Tiny random checkpoints of the real architectures, for tests and demonstrations."""
