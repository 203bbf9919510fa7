"""Model adapters: everything specific to a model family, and nothing about RL."""

# Part of mmcorl.
