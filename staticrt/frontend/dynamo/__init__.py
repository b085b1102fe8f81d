"""Graphs that Dynamo splits a function into, and what is known of their inputs."""
