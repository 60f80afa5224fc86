"""Before you train: how many machines, which method, how split, and is the network enough? `python -m planning`."""
