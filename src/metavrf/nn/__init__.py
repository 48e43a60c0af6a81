"""Networks: embeddings, context, posterior and prior. Parameters only."""
