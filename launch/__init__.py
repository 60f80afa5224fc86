"""Commands as processes: how each begins, and how one run is started as several of them.

``launch.command`` is what every command does first. ``launch.local`` starts a run on this machine, and the files beside
it start one on clusters. Nothing here imports JAX.
"""
