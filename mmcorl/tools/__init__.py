"""Commands beside training: doctor, sweep, rephrase and the zoo of tiny checkpoints."""
