"""A training run: its directory, its checkpoint, the loop."""
