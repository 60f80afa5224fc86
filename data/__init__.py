"""Data sets by name, and the batches that each step trains on.

Importers name the module they need; this file imports nothing, so that a decoding process can import ``data.decoding``
without JAX. A batch is a pure function of (seed, batch_index):

>>> from data.example_order import ExampleOrder
>>> from data.sources import make
>>> source = make("digits")  # knows the shapes; has read no example yet
>>> source.info.example["image"].shape, source.info.sizes, source.info.num_train, source.info.num_test
((8, 8, 1), {'num_classes': 10}, 1437, 360)
>>> order = ExampleOrder(num_examples=source.info.num_train, batch_size=4, seed=0)
>>> order.indices(0, num_batches=2).shape
(2, 4)

``source.load(seed)`` then reads the examples, and ``data.feeds.Feeds`` turns step plans into batches::

    dataset = source.load(0)
    with Feeds(dataset.train, order, layout=(8, 1)) as feeds:
        for plan, feed in feeds.follow(plans):  # leading axes [D, L]; each worker calls fetch(resident, feed)
            ...
"""
