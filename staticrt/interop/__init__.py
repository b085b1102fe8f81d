"""Other formats and libraries: ONNX, TensorRT, torch.distributed."""
