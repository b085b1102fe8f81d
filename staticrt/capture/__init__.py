"""Graph capture and replay: graph trees over a small device interface (`protocol.py`)."""
