"""Where tasks come from. Knows sampling, nothing of models."""
