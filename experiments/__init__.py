"""Tables, figures and curves: `python -m experiments.plot RUN...` draws runs, `.arrivals` draws arrival models."""
