"""Update rules that optax lacks, or computes in another way."""
