"""The look of figures, and charts of workers over time."""
