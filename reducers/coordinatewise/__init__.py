"""Reducers that look at each coordinate by itself: medians and trimmed means."""
