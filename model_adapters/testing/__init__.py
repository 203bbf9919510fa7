"""Random checkpoints of the real architectures, for tests, demonstrations and the contract."""
