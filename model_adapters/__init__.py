"""What each model family needs so that one training loop can drive it. Nothing here knows about RL."""
