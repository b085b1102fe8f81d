"""The model zoo and its benchmark."""
