"""One rank of one agent: rollout, update, and the checks around them."""
