"""A run as a folder: logs, checkpoints, progress, and reading them back."""
