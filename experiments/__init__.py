"""Tables, figures and curves of runs: `python -m experiments.plot RUN...` draws what runs recorded."""
