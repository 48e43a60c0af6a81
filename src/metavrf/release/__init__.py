"""What is passed on: a packed model with its card, ONNX."""
