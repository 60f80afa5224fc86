"""The reducer inside a reducer."""

from reducers.reducer import Combine, Reducer, as_inner
from reducers.sums.mean import mean


def combiner_of(combine: Combine, axes: tuple[str, ...]) -> Reducer:
    """Returns the reducer that another one wraps; None is ``mean``.

    Raises:
      ValueError: if it is no transformation, or if it does not emit every update.
    """
    return mean(axes) if combine is None else as_inner(combine, key="combine")
