"""What ``pip install .`` installs, under one name.

    syncsum.reducers            gradient aggregation as optax transformations
    syncsum.optim               optimizers and schedules, and the outer optimizers of workers apart
    syncsum.tensor_parallel     layers that are cut over a mesh of devices

They are the packages ``reducers``, ``optim`` and ``tensor_parallel`` themselves, whose modules have two names each:

>>> import reducers
>>> from syncsum.reducers import encodings
>>> encodings is reducers.encodings
True
"""

import sys

import optim.testing  # the modules that the packages do not import by themselves
import reducers.testing
import tensor_parallel
from reducers import __version__

__all__ = ["__version__", "optim", "reducers", "tensor_parallel"]

# `import syncsum.reducers.adasum` would else run the module a second time, and would set `reducers.adasum`, which is a
# function, to it.
sys.modules.update(
    {f"syncsum.{name}": module for name, module in sys.modules.copy().items() if name.partition(".")[0] in __all__}
)
