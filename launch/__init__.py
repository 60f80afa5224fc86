"""Starting one run as several processes: on this machine by ``local``, on a cluster by the files beside it."""
