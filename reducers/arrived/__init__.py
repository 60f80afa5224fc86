"""Reducers over the workers that arrive in time; late gradients are dropped."""
