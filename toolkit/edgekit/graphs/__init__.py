"""The room that reads, checks, measures and edits ONNX graphs."""
