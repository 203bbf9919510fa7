"""A model and its adapter as one module, and what goes into and out of it."""
