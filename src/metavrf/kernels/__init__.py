"""Random features and ridge regression: pure batched functions on tensors."""
