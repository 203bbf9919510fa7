"""Noise without state: every seed is a function of what it is for."""

from __future__ import annotations

import hashlib


def noise_seed(run_seed: int, agent: str, step: int, rank: int) -> int:
    """Seed of the sampling noise of one agent, step and rank (63 bits): no state to save, no twins."""
    text = f"{run_seed}/{agent}/{step}/{rank}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
