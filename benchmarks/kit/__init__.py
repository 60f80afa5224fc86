"""The parts of which each benchmark is made: contenders that take turns, time limits, results and their report."""
