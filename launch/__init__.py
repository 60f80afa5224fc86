"""Starts one run as several processes: on this machine by ``launch.local``, on clusters by the files beside it."""
