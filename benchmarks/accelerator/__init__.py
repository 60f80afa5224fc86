"""The parts of the benchmark of one accelerator."""
