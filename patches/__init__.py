"""Fixes for bugs in upstream libraries: one module per bug, never an edit of site-packages."""
