"""Divides the training examples among workers that have data of their own."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias, cast

import numpy as np
from scipy import special

from data.example_order import ExampleOrder, shuffled_pass
from data.examples import Arrays, Dataset, Examples
from reducers.registry import Registry

# (labels [N], num_workers, seed) -> the indices of each worker's examples; no two workers share an example.
Split: TypeAlias = Callable[[np.ndarray, int, int], list[np.ndarray]]

_MOST_DRAWS = 100


def shuffled() -> None:
    """Lets all workers draw from all examples: no example is a worker's own."""


def dirichlet(*, alpha: Annotated[float, "[1e-300, inf)"] = 0.5) -> Split:
    r"""Divides the examples of each class by random proportions.

    .. math:: p_c \sim \mathrm{Dirichlet}(\alpha, \dots, \alpha)

    :math:`p_c` are the workers' proportions of class c. With alpha = 100 all workers have similar examples; with 0.1
    one or two workers have most of a class. Workers have different numbers of examples; if one has none, all
    proportions are drawn again.

    Args:
      alpha: the concentration.

    >>> shares = dirichlet(alpha=0.5)(np.arange(100) % 2, 4, 0)
    >>> [len(share) for share in shares], sum(map(len, shares))
    ([4, 47, 5, 44], 100)

    Reference: Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", arXiv 1905.12022, and
    Li, Diao, Chen, He, arXiv 2102.02079, which draws again below 10 examples (both from memory).
    """

    def split(labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        from scipy import stats  # takes half a second

        for draw in range(_MOST_DRAWS):
            shares: list[list[np.ndarray]] = [[] for _ in range(num_workers)]
            for c, examples in enumerate(_by_class(labels, seed)):
                proportions = special.softmax(stats.loggamma.ppf(_uniform(num_workers, seed, draw, c), alpha))
                ends = np.rint(np.cumsum(proportions) * len(examples)).astype(int)[:-1]
                for share, part in zip(shares, np.split(examples, ends), strict=True):
                    share.append(part)
            found = [np.sort(np.concatenate(share)) for share in shares]
            if min(map(len, found)):
                return found
        raise ValueError(f"alpha={alpha}: in {_MOST_DRAWS} draws a worker of {num_workers} had no example")

    return split


def by_label(*, labels_per_worker: Annotated[int, "[1, inf)"] = 2) -> Split:
    """Gives each worker examples of a few classes; the workers of a class divide its examples evenly.

    The numbers of workers that the classes have differ by at most one.

    Args:
      labels_per_worker: the number of classes of each worker; every class must have a worker.

    >>> shares = by_label(labels_per_worker=1)(np.arange(6) % 3, 3, 0)
    >>> sorted(share.tolist() for share in shares)
    [[0, 3], [1, 4], [2, 5]]

    Reference: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", arXiv 1602.05629, section 3. Differs from the paper in: the paper gives each worker two shards
    of sorted examples, which may hold three classes.
    """

    def split(labels: np.ndarray, num_workers: int, seed: int) -> list[np.ndarray]:
        classes = _by_class(labels, seed)
        key = f"labels_per_worker={labels_per_worker}"
        count = len(classes)
        if labels_per_worker > count:
            raise ValueError(f"{key}: exceeds the {count} classes of the data")
        if labels_per_worker * num_workers < count:
            raise ValueError(f"{key}: {num_workers} workers do not have the {count} classes of the data")
        # Going through the classes in turns gives no worker a class twice; the order of workers is random.
        turns = np.arange(num_workers * labels_per_worker).reshape(num_workers, -1) % count
        turns = turns[_order(num_workers, seed)]
        shares: list[list[np.ndarray]] = [[] for _ in range(num_workers)]
        for c, of_class in enumerate(classes):
            owners = np.flatnonzero((turns == c).any(axis=1))
            for owner, part in zip(owners, np.array_split(of_class, len(owners)), strict=True):
                shares[owner].append(part)
        found = [np.sort(np.concatenate(share)) for share in shares]
        if not min(map(len, found)):
            raise ValueError(f"{key}: a class has fewer examples than workers")
        return found

    return split


SPLITS = Registry({"by_label": by_label, "dirichlet": dirichlet, "shuffled": shuffled})


class OwnExamples:
    """The examples of each batch if workers have shares: batch i is batch i // W of worker i mod W.

    A worker goes through its share in shuffled passes, as `ExampleOrder` goes through all examples.

    Attributes:
      shares: the indices of each worker's examples.
      flip_labels: the workers whose labels are wrong.
      num_examples: the number of examples in all shares.
      batch_size: B.
      weights: [W] float32, what each worker's gradient weighs; None if that does not depend on its share.

    >>> order = OwnExamples([np.array([0, 1]), np.array([2, 3])], batch_size=2, seed=0)
    >>> np.sort(order.indices(0, num_batches=2)).tolist()
    [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        shares: Sequence[np.ndarray],
        *,
        batch_size: int,
        seed: int,
        flip_labels: Sequence[int] = (),
        weights: np.ndarray | None = None,
    ):
        """Gives each worker an order of its own.

        Args:
          shares: the indices of each worker's examples.
          batch_size: B.
          seed: 0 to 2**32 - 1.
          flip_labels: the workers whose labels are wrong.
          weights: see above.
        """
        self.flip_labels = tuple(flip_labels)
        self.num_examples = sum(map(len, shares))
        self.batch_size = int(batch_size)
        self.weights = None if weights is None else np.asarray(weights, np.float32)
        self.shares = [np.asarray(share, np.int32) for share in shares]
        self._orders = [
            ExampleOrder(num_examples=len(share), batch_size=batch_size, seed=seed + (worker + 1 << 32))
            for worker, share in enumerate(shares)
        ]

    def indices(self, first_batch_index: int, *, num_batches: int) -> np.ndarray:
        """Returns the examples of consecutive batches, [num_batches, B] int32, as `ExampleOrder.indices` does."""
        rows = []
        for number in range(first_batch_index, first_batch_index + num_batches):
            own, worker = divmod(number, len(self.shares))
            rows.append(self.shares[worker][self._orders[worker].indices(own, num_batches=1)[0]])
        return np.stack(rows)

    def as_labelled(self, examples: Examples) -> Examples:
        """Returns the examples as their workers have them: with C - 1 - c in place of c where labels are wrong.

        >>> order = OwnExamples([np.array([0, 2]), np.array([1])], batch_size=1, seed=0, flip_labels=[0])
        >>> order.as_labelled(Arrays({"label": np.array([0, 1, 2])})).columns["label"].tolist()
        [2, 1, 0]

        Reference: label flipping by the clients of ByzFL (from memory).
        """
        if not self.flip_labels:
            return examples
        columns = cast(Arrays, examples).columns  # shares are of examples in memory alone
        label = columns["label"].copy()
        wrong = np.concatenate([self.shares[worker] for worker in self.flip_labels])
        label[wrong] = label.max() - label[wrong]
        return Arrays({**columns, "label": label})


def labels_of(dataset: Dataset, *, key: str = "data") -> np.ndarray:
    """Returns the labels of the training examples, [N].

    Args:
      dataset: a data set in memory.
      key: the config key that needs the labels, for errors.

    Raises:
      ValueError: one line, if the examples are not in memory or have no labels.
    """
    labels = dataset.train.columns.get("label") if isinstance(dataset.train, Arrays) else None
    if labels is None or labels.ndim != 1:
        raise ValueError(f"{key}: needs data in memory with a label of each example")
    return np.asarray(labels)


def table(shares: Sequence[np.ndarray], labels: np.ndarray) -> str:
    """Returns a CSV table with the number of examples of each worker and class; zeros are left out.

    >>> print(table([np.array([0, 2]), np.array([1])], np.array([0, 1, 1])), end="")
    worker,label,examples
    0,0,1
    0,1,1
    1,1,1
    """
    found = [(worker, *np.unique(labels[share], return_counts=True)) for worker, share in enumerate(shares)]
    lines = [f"{worker},{c},{n}" for worker, classes, many in found for c, n in zip(classes, many, strict=True)]
    return "\n".join(["worker,label,examples", *lines]) + "\n"


def _by_class(labels: Any, seed: int) -> list[np.ndarray]:
    """Returns the indices of each class's examples, in random order."""
    order = _order(len(labels), seed)
    return [order[labels[order] == c] for c in np.unique(labels)]


def _order(count: int, seed: int) -> np.ndarray:
    return shuffled_pass(_SPLITTING, num_examples=count, seed=seed)


def _uniform(count: int, seed: int, *numbers: int) -> np.ndarray:
    """Returns uniform numbers in (0, 1), [count], from random words that NumPy guarantees for later versions."""
    words = np.random.Philox(key=np.array([seed, _SPLITTING], np.uint64), counter=[0, 0, *numbers]).random_raw(count)
    return (words.astype(np.float64) + 0.5) / 2.0**64


# A pass number that no run reaches, so that these draws differ from those of all passes.
_SPLITTING = 2**63
