"""The losses, advantages and log-probabilities of a policy step: tensors in, tensors out, no model."""
