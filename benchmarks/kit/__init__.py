"""What benchmarks are made of: contenders that take turns, their limits, results and report."""
