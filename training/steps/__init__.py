"""The step of each mode: what a worker computes, what all reduce, what becomes of the shared state."""
