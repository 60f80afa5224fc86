"""Benchmarks: commands that print what they measure; no test asserts a time."""
