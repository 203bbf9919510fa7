"""Clocks, memory and temporary files of this process."""
