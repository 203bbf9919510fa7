"""Comparisons of evaluations: pairs, teams, overlap of errors, equal budgets."""
