"""Other formats, libraries: ONNX, TensorRT, torch.distributed."""
