"""Folders of evaluations, and tables of them."""
