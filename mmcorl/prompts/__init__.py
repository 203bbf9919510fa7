"""Instructions and templates around a question."""
