"""Types of the C++ extension, one block per bind_*.cpp."""
