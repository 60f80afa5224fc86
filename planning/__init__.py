"""Plans a training before it runs: machines, method, split of the layers, network: ``python -m planning``."""
