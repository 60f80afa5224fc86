"""Commands as processes: how a command begins, and how one run is started as several processes.

``launch.command`` is what every command does first. ``launch.local`` starts a run on this machine, and the files beside
it start one on clusters. ``launch.whole_files`` writes files of all rooms. Nothing here imports JAX, except
``launch.compilers`` on machines that have JAX's plugins for devices which they lack.
"""
