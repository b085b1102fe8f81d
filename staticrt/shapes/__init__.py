"""Stage 2: symbolic sizes and shape rules of fake tensors."""
