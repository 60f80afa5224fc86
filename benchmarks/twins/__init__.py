"""The same networks and recipes in PyTorch."""
