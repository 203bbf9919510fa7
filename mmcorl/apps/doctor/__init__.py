"""Checks of a machine and a config before a run."""
