"""Benchmarks: where their rows come from, and how an answer of each is scored."""
