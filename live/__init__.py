"""SGD in wall-clock time: workers are processes, and a step ends when enough gradients have arrived.

    python train.py --live --config=configs/digits.py --config.reducer.name=backup_workers ...

A *server* keeps the state and applies updates; a *worker* keeps nothing. For each gradient the server hands a worker
the parameters, the worker's own row of the state and the number of its batch, and gets back what a worker of a
simulated run computes; so a worker may die at any moment. The two halves are those of the simulated step: its
``compute``, compiled for the workers of one process, and its ``update``, over all workers as lanes of one device.
"""

from live import delays, ray_engine
from live.run import MissingError, Workers, check, train
