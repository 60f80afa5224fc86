"""The parts of each benchmark: contenders that take turns, time limits, results and their report."""
