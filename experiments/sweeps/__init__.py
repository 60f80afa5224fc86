"""Sweeps over any config: points, results, tables and figures."""
