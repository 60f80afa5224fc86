"""The matrix products and convolutions of a model, from its traced program or from a table of shapes."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
from jax.extend.core import Literal
from ml_collections import ConfigDict

from data.assumed import make_or_assume
from models.layers import lane_convolution
from planning.parsing import read_csv
from reducers.leaves import leaf_names
from training.task import batch_inputs, make_task, open_source

SIZES = ("ifm", "ofm", "kw", "kh", "iw", "ih", "ow", "oh")
OTHERS = "other parameters"  # biases, scales, embeddings: they are sent, but take part in no product


class Layer(NamedTuple):
    """A matrix product or a convolution; all counts except ``weights`` are per example.

    Attributes:
      name: the name of its parameter.
      flop: floating-point operations of the forward pass: a multiplication and an addition per weight and position.
      weights: the number of weights, whose gradients are sent.
      inputs: the number of input activations.
    """

    name: str
    flop: float
    weights: int
    inputs: int

    @property
    def is_dense(self) -> bool:
        """Whether it uses each weight once per example."""
        return 0 < self.flop == 2 * self.weights


class Model(NamedTuple):
    """The layers of a model, in order from the input, and the shapes of its parameters."""

    layers: list[Layer]
    params: Any


def of_shapes(name: str, *, ifm: int, ofm: int, kw: int, kh: int, iw: int, ih: int, ow: int, oh: int) -> Layer:
    """Returns the layer from ``ifm`` maps of iw x ih to ``ofm`` maps of ow x oh; a dense layer has 1 for all others.

    >>> of_shapes("fc", ifm=4096, ofm=1000, kw=1, kh=1, iw=1, ih=1, ow=1, oh=1)
    Layer(name='fc', flop=8192000, weights=4096000, inputs=4096)
    """
    weights = ifm * ofm * kw * kh
    return Layer(name, 2 * weights * ow * oh, weights, ifm * iw * ih)


def read_table(path: str) -> Model:
    """Reads a CSV file with a row per layer and the columns name, ifm, ofm, kw, kh, iw, ih, ow, oh.

    Raises:
      ValueError: one line, if the file is not such a table.
    """
    refused = f"layers={path!r}: must be a CSV file with the columns name, {', '.join(SIZES)}"
    rows = read_csv(path, {"name": str, **dict.fromkeys(SIZES, int)}, refused=refused)
    if not rows or min(min(numbers) for _, *numbers in rows) < 1:
        raise ValueError(f"{refused} (a row per layer, all numbers at least 1)")
    layers, params = [], []
    for name, *numbers in rows:
        row = dict(zip(SIZES, numbers, strict=True))
        layers.append(of_shapes(name, **row))
        params.append(jax.ShapeDtypeStruct((row["kw"] * row["kh"] * row["ifm"], row["ofm"]), "float32"))
    return Model(layers, params)


def of_config(config: ConfigDict) -> Model:
    """Traces the loss of one example; compiles nothing, and needs no data set.

    A value computed from parameters alone counts as a weight. The gradient of a weight is sent once, even if several
    layers use it.

    Raises:
      ConfigError: one line, if the config is invalid.
    """
    source = open_source(config, open_data=make_or_assume)
    task = make_task(config, source=source)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    example = batch_inputs(source.info, 1)
    return Model(trace(task.loss, *shapes, example, jax.random.key(0)), shapes[0])


def trace(loss: Any, params: Any, *inputs: Any) -> list[Layer]:
    """Returns the layers of a loss of parameters and one example; the last one collects all other parameters.

    >>> f = lambda w, x: jax.nn.relu(x @ w["a"]) @ w["b"]
    >>> shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, "float32")
    >>> trace(f, {"a": shape(4, 8), "b": shape(8, 2)}, shape(1, 4))
    [Layer(name='a', flop=64, weights=32, inputs=4), Layer(name='b', flop=32, weights=16, inputs=8)]
    """
    jaxpr = jax.make_jaxpr(loss)(params, *inputs).jaxpr
    origins = [frozenset({name}) for name in leaf_names(params)]
    origins += [_DATA] * (len(jaxpr.invars) - len(origins))
    found: list[Layer] = []
    _walk(jaxpr, origins, found, times=1)
    weights = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    rest = weights - sum(layer.weights for layer in found)
    return [*found, Layer(OTHERS, 0, rest, 0)] if rest > 0 else found


_DATA = frozenset({""})  # the origins of a value: names of parameters, and "" for data


def _walk(jaxpr: Any, origins: Iterable[frozenset[str]], found: list[Layer], *, times: int) -> list[frozenset[str]]:
    """Appends the layers of a program to ``found``; returns the origins of its results.

    Args:
      jaxpr: the program.
      origins: of each argument, the names of the parameters from which it is computed, and "" for data.
      found: the layers so far.
      times: how often the program runs: more than once in a scan.
    """
    made_of = dict(zip(jaxpr.invars, origins, strict=True))

    def origin(value: Any) -> frozenset[str]:
        return frozenset() if isinstance(value, Literal) else made_of.get(value, frozenset())

    for equation in jaxpr.eqns:
        operands = [origin(value) for value in equation.invars]
        results = [frozenset[str]().union(*operands)] * len(equation.outvars)
        if flop := _flop(equation):
            found.append(_layer(equation, operands, flop * times, found))
        if (inner := _inner(equation)) is not None:
            count = times * equation.params["length"] if equation.primitive.name == "scan" else times
            returned = _walk(inner, operands[len(operands) - len(inner.invars) :], found, times=count)
            results = [one | two for one, two in zip(results, returned, strict=False)]
        made_of.update(zip(equation.outvars, results, strict=True))
    return [origin(value) for value in jaxpr.outvars]


def _inner(equation: Any) -> Any:
    """Returns the longest program inside an equation; None if there is none. A condition has a program per branch."""
    programs: list[Any] = []
    for key, value in equation.params.items():
        if key != "cond_jaxpr":
            branches = value if isinstance(value, tuple | list) else (value,)
            programs += [getattr(branch, "jaxpr", branch) for branch in branches]
    programs = [program for program in programs if hasattr(program, "eqns")]
    return max(programs, key=lambda program: len(program.eqns)) if programs else None


def _flop(equation: Any) -> int:
    """Returns the floating-point operations of a product or a convolution; 0 for anything else."""
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        summed = [equation.invars[0].aval.shape[axis] for axis in contracted]
    elif equation.primitive.name == "conv_general_dilated":
        _, into, *space = equation.params["dimension_numbers"].rhs_spec
        summed = [equation.invars[1].aval.shape[axis] for axis in (into, *space)]
    elif equation.primitive is lane_convolution.convolution_p:
        summed = equation.invars[1].aval.shape[:-1]
    else:
        return 0
    return 2 * equation.outvars[0].aval.size * math.prod(summed)


def _layer(equation: Any, operands: list[frozenset[str]], flop: int, found: list[Layer]) -> Layer:
    name, weights, inputs = "", 0, 0
    for value, made_of in zip(equation.invars, operands, strict=True):
        if made_of and "" not in made_of:
            name = name or "+".join(sorted(made_of))
            weights += value.aval.size
        else:
            inputs += value.aval.size
    name = name.removesuffix("/kernel") or str(equation.source_info.name_stack) or equation.primitive.name
    if any(layer.name == name for layer in found):
        weights = 0  # sent once
    return Layer(name, flop, weights, inputs)
