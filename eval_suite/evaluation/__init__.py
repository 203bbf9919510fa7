"""From a checkpoint to a scored evaluation."""
