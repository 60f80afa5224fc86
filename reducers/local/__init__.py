"""Reducers of workers that make several steps of their own between two synchronizations."""
