"""Engines sample completions; each lives in a module of its own and is imported only when used."""
