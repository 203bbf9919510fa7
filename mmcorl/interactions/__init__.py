"""Training on episodes: agents answer, read each other and answer again, and every call earns a reward of its own."""
