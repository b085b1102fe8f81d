"""The commands of `staticrt`, one module each, and what they share."""
