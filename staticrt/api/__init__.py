"""What users call: `compile`, compiled modules, the `torch.compile` backend."""
