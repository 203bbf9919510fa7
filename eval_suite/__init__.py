"""Benchmarks and graders for trained checkpoints."""
