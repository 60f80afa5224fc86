"""The step of each mode: a worker's computation, the reduction over all workers, the update of the shared state."""
