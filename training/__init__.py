"""Training: a config made concrete, the step, the plan of steps, evaluation and metrics."""
