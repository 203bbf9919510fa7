"""Grids of runs, and the page that compares them."""
