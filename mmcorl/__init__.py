"""Co-training of different model families with reinforcement learning and no labels."""

__version__ = "0.1.0"
