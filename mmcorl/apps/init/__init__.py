"""New configs for a user's own models and data."""
