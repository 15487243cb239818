"""Pure numpy: ranges, scales, rounding, statistics. No onnx, no torch."""
