"""ONNX in and out: `staticrt.from_onnx` and `staticrt.to_onnx`.

A model file becomes an `nn.Module` of steps (`program`, `module`), each a function of torch operators
(`operators/`); `staticrt.compile` traces and runs that module like any other. Nothing here is on the hot path.
"""
