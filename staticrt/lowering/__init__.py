"""Stage 4: lowers a graph to a C++ `Program`, and hands subgraphs to accelerators."""
