"""torch-tensorrt as an accelerator of partial graphs."""
