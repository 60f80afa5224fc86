"""Tables, figures and curves: `python -m experiments.plot RUN...` draws runs, `.planner` plans backup workers."""
