"""Small models with planted weaknesses, for demonstrations without downloads."""
