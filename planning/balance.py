r"""Balances computation and communication layer by layer: the time of a step on more and more nodes.

    python -m planning balance --config=configs/mnist.py --flop_per_second=1e12 --bytes_per_second=1.25e9
    python -m planning balance --layers=shapes.csv --batch=256 --nodes=1,8,64 --flop_per_second=1e12 \
        --bytes_per_second=6e9 --parallel=hybrid --methods=mean,adasum,mean+top_k:ratio=0.01,local_sgd:every_steps=8

The layers come from a config, which is traced and not compiled, or from a CSV file with the columns name, ifm, ofm, kw,
kh, iw, ih, ow, oh. A method is a reducer with its options, optionally followed by "+" and an encoding. Nothing is
measured: flags give the speed of a node and of the network.
"""

import argparse
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np
from jax import numpy as jnp

import reducers
from configs import flags
from planning import layers
from planning.layers import Layer
from planning.network import Network, exposed, rounds_of
from planning.parsing import Answer, PlanParser, counts, number, table
from reducers import registry
from reducers.wrappers import communication
from runs.reporting.figures import COLOURS, MARKERS, Figure, plain_numbers, ticks

Parallel = Literal["data", "hybrid"]
_MOST_NAMED = 6  # layers in a line
_LEAST_NAMED = 0.05  # of the seconds that a step waits for gradients
NUMBER_BYTES = 4  # s, the bytes of one number of a gradient or an activation


class Node(NamedTuple):
    """A node and its network.

    Attributes:
      flop_per_second: the speed of a node.
      network: the network between nodes.
      overlap: how far the two phases of an all-reduce overlap: 0 if one follows the other, 1 if they coincide.
    """

    flop_per_second: float
    network: Network
    overlap: float = 0.0

    @property
    def balance(self) -> float:
        """The operations that a node computes in the time in which it sends a byte."""
        return self.flop_per_second / self.network.bytes_per_second

    def gradient_bytes(self, layer: Layer) -> float:
        """Returns s W (2 - overlap): the paper's bytes for W weights in the two phases, for any number of nodes."""
        return NUMBER_BYTES * layer.weights * (2 - self.overlap)


class Method(NamedTuple):
    """The communication of a reducer with an encoding.

    Attributes:
      name: the method as the user wrote it.
      sends: number of nodes -> the bytes that a node sends, as a share of two phases of whole gradients, and the rounds
        of messages.
      every_steps: H, steps from one exchange to the next.
      delay_steps: d, steps from the start of an exchange to the use of its result.
    """

    name: str
    sends: Callable[[int], tuple[float, float]] = lambda nodes: (1.0, 0.0)
    every_steps: int = 1
    delay_steps: int = 0


MEAN = Method("mean, as in the paper")


def parse_method(text: str, params: Any) -> Method:
    """Parses ``reducer[:key=value,...][+encoding[:key=value,...]]``; counts its traffic for these parameters.

    Raises:
      ValueError: one line, if a name or key is unknown, or a value is not allowed.
    """
    of_reducer, plus, of_encoding = text.partition("+")
    try:
        block = registry.parse_block(of_reducer)
        encoding = registry.parse_block(of_encoding if plus else "full")
        reducers.REDUCERS.check(block)
        communication.COMMUNICATIONS.check(encoding)
        reducer = reducers.make(
            **block,
            axis_name="worker",
            encode=lambda reducer: communication.make(**encoding, reducer=reducer, axis_name="worker"),
        )
    except ValueError as error:
        raise ValueError(f"methods={text!r}: {error}") from None
    both_phases = 2 * NUMBER_BYTES * sum(leaf.size for leaf in jax.tree.leaves(params))

    @functools.cache
    def sends(nodes: int) -> tuple[float, float]:
        if nodes == 1:
            return 0.0, 0.0
        arrivals = {"arrival_seconds": jnp.zeros(nodes)} if reducer.needs_arrivals else {}
        try:
            traffic = reducers.traffic(reducer, updates=params, axis_sizes={"worker": nodes}, **arrivals)
        except ValueError as error:
            raise ValueError(f"methods={text!r}: on {nodes} nodes: {error}") from None
        return traffic.bytes_per_worker / both_phases, rounds_of(traffic.collectives, num_workers=nodes)

    return Method(text, sends, every_steps=block.get("every_steps", 1), delay_steps=block.get("delay_steps", 0))


# ---- a layer ---------------------------------------------------------------------------------------------------------


def least_batch(layer: Layer, node: Node) -> float:
    r"""Returns the smallest batch per node for which computing a layer takes as long as exchanging its gradient.

    .. math:: MB \ge \frac{F}{B} \, \frac{s \, (2 - overlap)}{6 \, ow \, oh}

    A node computes F FLOP/s and sends B bytes/s; a number has s bytes. With s = 4 and overlap = 1, the batch is
    F / B / (1.5 ow oh).

    >>> fc = layers.of_shapes("fc", ifm=4096, ofm=4096, kw=1, kh=1, iw=1, ih=1, ow=1, oh=1)
    >>> least_batch(fc, Node(1.5e12, Network(1e10), overlap=1.0)), least_batch(fc, Node(1.5e12, Network(1e10)))
    (100.0, 200.0)

    Reference: Das et al., arXiv 1602.06709 (computation and bytes READ in a review; the inequality DERIVED).
    """
    return node.balance * node.gradient_bytes(layer) / (3 * layer.flop) if layer.flop else math.inf


def volume(layer: Layer, groups: Any, *, batch: float, num_nodes: int, node: Node) -> Any:
    r"""Returns the bytes that a node sends if G groups divide the examples, and the N / G nodes of each the layer.

    .. math::
        V(G) = \frac{2 s \, ifm \, iw \, ih \, MB}{G} + \frac{s \, ifm \, ofm \, kw \, kh \, (2 - overlap) \, G}{N}

    Args:
      layer: the layer.
      groups: G, a number or an array.
      batch: MB, the examples of a step on all nodes.
      num_nodes: N.
      node: the node and its network.

    Reference: Das et al., arXiv 1602.06709 (that G is chosen to minimise the bytes READ in a review; the formula
    DERIVED).
    """
    return 2 * NUMBER_BYTES * layer.inputs * batch / groups + node.gradient_bytes(layer) * groups / num_nodes


def best_groups(layer: Layer, *, batch: float, num_nodes: int, node: Node) -> tuple[float, int]:
    r"""Returns the real number of groups that minimises ``volume``, and the divisor of N that does.

    .. math:: G^* = \sqrt{\frac{2 N \, MB \, iw \, ih}{ofm \, kw \, kh \, (2 - overlap)}}

    >>> fc = layers.of_shapes("fc", ifm=4096, ofm=4096, kw=1, kh=1, iw=1, ih=1, ow=1, oh=1)
    >>> [best_groups(fc, batch=256, num_nodes=64, node=Node(1e12, Network(1e9), overlap)) for overlap in (0, 1)]
    [(2.0, 2), (2.8284271247461903, 2)]
    """
    # Without weights there is nothing to divide; without inputs more groups cost nothing.
    if not layer.weights or not layer.inputs:
        return math.inf, num_nodes
    best = math.sqrt(2 * num_nodes * batch * layer.inputs / (layer.weights * (2 - node.overlap)))
    every = np.arange(1, num_nodes + 1)
    divisors = every[num_nodes % every == 0]
    sent = volume(layer, divisors, batch=batch, num_nodes=num_nodes, node=node)
    return best, int(divisors[np.argmin(sent)])


# ---- a step ----------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A step of L layers on N nodes.

    Attributes:
      nodes: N.
      seconds: the time of the step.
      computing: the seconds in which a node computes.
      speed_up: the seconds of one node for the same examples, divided by ``seconds``.
      waits: the seconds that the step waits for gradients after it has computed.
      costs: [L], the seconds by which the step would be shorter if a layer's gradient took no time to exchange; those
        of layers that only wait behind it in the queue are their own alone.
      groups: [L], the number of groups of nodes for each layer; N groups are data parallelism.
      sent: [L], the bytes of each layer's gradient in one exchange, less those that overlap.
    """

    nodes: int
    seconds: float
    computing: float
    speed_up: float
    waits: float
    costs: np.ndarray
    groups: np.ndarray
    sent: np.ndarray

    @property
    def efficiency(self) -> float:
        """The speed-up divided by the number of nodes."""
        return self.speed_up / self.nodes


def step(
    stack: Sequence[Layer],
    *,
    batch: float,
    num_nodes: int,
    node: Node,
    method: Method = MEAN,
    parallel: Parallel = "data",
) -> Step:
    r"""Returns the time of a step.

    A layer takes :math:`3 \cdot 2 \cdot MB \cdot ifm \, ofm \, kw \, kh \, ow \, oh` FLOP, a third of them forward. Its
    gradient is ready when the backward pass has gone through it; its exchange then waits for those of later layers. If
    a group divides a layer, the step also waits for the exchange of its activations. With H > 1 or a delay, all
    gradients are exchanged at once after H steps; ``network.exposed`` gives the time that computation does not hide.

    Args:
      stack: the layers, in order from the input.
      batch: the examples of a step, on all nodes together.
      num_nodes: N.
      node: the node and its network.
      method: how gradients are combined.
      parallel: "data", or "hybrid", which gives each dense layer the number of groups that sends the fewest bytes.

    Returns:
      The step.

    >>> fc = layers.of_shapes("fc", ifm=100, ofm=100, kw=1, kh=1, iw=1, ih=1, ow=1, oh=1)
    >>> found = step([fc], batch=10, num_nodes=10, node=Node(1e6, Network(2e6)))  # nothing is left to hide behind
    >>> [round(float(number), 3) for number in (found.computing, found.seconds, found.speed_up)]
    [0.06, 0.1, 6.0]

    Reference: Das et al., arXiv 1602.06709 (computation and bytes READ in a review). Differs from the paper in:
    gradients are sent in the order of the backward pass, and none is hidden behind the next forward pass; a method from
    ``parse_method`` sends the bytes of ``reducers.traffic`` in both phases, without overlap; rules that need the whole
    gradient before they send are modelled as beginning with each layer, as the mean does.
    """
    count = len(stack)
    forward = np.array([layer.flop for layer in stack]) * batch / num_nodes / node.flop_per_second  # seconds
    whole = np.array([node.gradient_bytes(layer) for layer in stack])
    groups, activations = np.full(count, num_nodes), np.zeros(count)
    computing = 3 * forward.sum()
    if num_nodes == 1:
        return Step(num_nodes, computing, computing, 1.0, 0.0, np.zeros(count), groups, np.zeros(count))
    if parallel == "hybrid":
        for i, layer in enumerate(stack):
            if not layer.is_dense:
                continue
            _, shared = best_groups(layer, batch=batch, num_nodes=num_nodes, node=node)
            if volume(layer, shared, batch=batch, num_nodes=num_nodes, node=node) < whole[i]:
                groups[i] = shared
                activations[i] = 2 * NUMBER_BYTES * layer.inputs * batch / shared
    _, rounds = method.sends(num_nodes)
    latency = node.network.latency_seconds * rounds
    shares = np.array([method.sends(int(n))[0] for n in groups])
    sent = shares * whole * groups / num_nodes
    exchange = sent / node.network.bytes_per_second + latency / count
    waited = activations.sum() / node.network.bytes_per_second
    remains = 2 * (np.cumsum(forward) - forward)  # seconds of the backward pass after each layer
    total = float(computing + waited)
    if method.every_steps > 1 or method.delay_steps:
        delayed: dict[str, Any] = {
            "step_seconds": total,
            "every_steps": method.every_steps,
            "delay_steps": method.delay_steps,
        }
        late = exposed(float(exchange.sum()), **delayed)
        costs = np.array([late - exposed(exchange.sum() - one, **delayed) for one in exchange])
    else:
        # The network is done when, after some gradient is ready, this one and all that follow it are sent.
        ends = np.cumsum(exchange) - remains
        late = max(0.0, float(ends.max()))
        # Without a layer, the gradients that are ready after it end as before, and those before it end earlier.
        later = np.concatenate([[0.0], np.maximum.accumulate(ends)[:-1]])
        earlier = np.maximum.accumulate(ends[::-1])[::-1] - exchange
        costs = late - np.clip(np.maximum(earlier, later), 0, late)
    end = total + late
    return Step(num_nodes, end, computing, num_nodes * computing / end, late, costs, groups, sent)


# ---- the command -----------------------------------------------------------------------------------------------------


def rows_of_layers(stack: Sequence[Layer], found: Step, *, batch: float, node: Node) -> list[dict[str, Any]]:
    """Returns a row per layer: its computation and its bytes on N nodes, and the seconds that its exchange costs."""
    sizes: dict[str, Any] = {"batch": batch, "num_nodes": found.nodes, "node": node}
    rows = []
    for layer, costs, sent in zip(stack, found.costs, found.sent, strict=True):
        best, groups = best_groups(layer, **sizes)
        least = least_batch(layer, node)
        rows.append(
            {
                "layer": layer.name,
                "MFLOP": 3 * layer.flop / 1e6,
                "MB sent": float(sent) / 1e6,
                "least batch": least if math.isfinite(least) else "none",
                "costs s": float(costs),
                "G*": best if math.isfinite(best) else "all",
                "G": groups,
                "V(G) MB": volume(layer, groups, **sizes) / 1e6,
            }
        )
    return rows


def _waits(stack: Sequence[Layer], found: Step) -> tuple[str, list[str]]:
    """Returns for which layers' gradients a step waits, in words and as names, those that cost the most first."""
    if not found.waits:
        return "waits for no gradient", []
    order = np.argsort(-found.costs, kind="stable")
    late = [int(i) for i in order if found.costs[i] >= _LEAST_NAMED * found.waits]
    few = ", ".join(f"{stack[i].name} ({found.costs[i]:.3g} s)" for i in late[:_MOST_NAMED])
    if len(late) > _MOST_NAMED:
        few += f" and {len(late) - _MOST_NAMED} more"
    return f"waits {found.waits:.3g} s a step for {few or 'several layers alike'}", [stack[i].name for i in late]


def draw(figure: Figure, steps: dict[str, list[Step]]) -> None:
    """Draws the speed-up and the efficiency of each method against the number of nodes."""
    left, right = figure.subplots(1, 2)
    for i, (name, found) in enumerate(steps.items()):
        look: dict[str, Any] = {"color": COLOURS[i % 7], "marker": MARKERS[i % 7], "label": name}
        nodes = [one.nodes for one in found]
        left.plot(nodes, [one.speed_up for one in found], **look)
        right.plot(nodes, [100 * one.efficiency for one in found], **look)
    left.plot(nodes, nodes, ":", color="#666666", label="perfect")
    left.set(xscale="log", yscale="log", xlabel="nodes", ylabel="speed-up")
    right.set(xscale="log", ylim=(0, 105), xlabel="nodes", ylabel="efficiency (%)")
    for axes in (left, right):
        ticks(axes.xaxis, nodes)
    plain_numbers(left.yaxis)
    left.legend()


def find(arguments: argparse.Namespace) -> Answer:
    """Returns the tables of layers and of numbers of nodes.

    Raises:
      ValueError: one line, if an argument is not allowed.
    """
    if (arguments.config is None) == (arguments.layers is None):
        raise ValueError("config, layers: name one of the two")
    node = Node(
        number(arguments.flop_per_second, key="flop_per_second"),
        Network(
            number(arguments.bytes_per_second, key="bytes_per_second"),
            number(arguments.latency_seconds, key="latency_seconds", least=0.0),
        ),
        number(arguments.overlap, key="overlap", least=0.0, most=1.0),
    )
    nodes = counts(arguments.nodes, key="nodes")
    if arguments.config is not None:
        config = flags.load(arguments.config, [], trusted=arguments.trust_module.split(","))
        model = layers.of_config(config)
        batch = float(config.num_workers * config.batch_size_per_worker)
    else:
        model = layers.read_table(arguments.layers)
        if arguments.batch is None:
            raise ValueError("batch: is needed with --layers, the examples of a step")
    if arguments.batch is not None:
        batch = number(arguments.batch, key="batch")
    named = registry.split_blocks(arguments.methods)
    if twice := [name for name in named if named.count(name) > 1]:
        raise ValueError(f"methods={arguments.methods!r}: must name {twice[0]!r} once")
    methods = [parse_method(text, model.params) for text in named]
    shared: dict[str, Any] = {"batch": batch, "node": node}
    steps = {
        one.name: [step(model.layers, num_nodes=n, method=one, parallel=arguments.parallel, **shared) for n in nodes]
        for one in methods
    }
    phases = "both phases of an all-reduce count"
    if node.overlap:
        phases = f"{1 - node.overlap / 2:.4g} of the bytes of an all-reduce count, by --overlap={node.overlap:g}"
    weights = sum(layer.weights for layer in model.layers)
    flop = sum(layer.flop for layer in model.layers)
    lines = [
        f"{len(model.layers)} layers, {weights:,} weights, {flop / 1e9:.4g} GFLOP forward; {batch:g} examples a step; "
        f"{node.balance:.4g} FLOP/B, {arguments.parallel} parallel; {phases}; all modelled, nothing measured"
    ]
    binding = {}
    for name, found in steps.items():
        words, binding[name] = _waits(model.layers, found[-1])
        lines.append(f"{name}, {nodes[-1]} nodes: {found[-1].efficiency:.1%} efficient; {words}")
    of_layers = rows_of_layers(model.layers, steps[named[0]][-1], **shared)
    of_nodes = [
        {"method": name, "nodes": one.nodes, "s a step": one.seconds, "speed-up": one.speed_up}
        for name, found in steps.items()
        for one in found
    ]
    text = "\n".join([*lines, "", table(of_layers, digits=5), "", table(of_nodes)])
    numbers = {"batch": batch, "balance": node.balance, "overlap": node.overlap, "binding": binding}
    return Answer(text, {**numbers, "layers": of_layers, "steps": of_nodes}, lambda figure: draw(figure, steps))


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the answer; returns the exit code."""
    description = "Balances computation and communication, layer by layer."
    parser = PlanParser(prog="python -m planning balance", description=description)
    parser.add_argument("--config", help="a config as train.py takes it; its model is traced")
    parser.add_argument(
        "--trust_module", default="", help="modules that a config.json of your own code may run, separated by commas"
    )
    parser.add_argument("--layers", help="or a CSV file of shapes: name, ifm, ofm, kw, kh, iw, ih, ow, oh")
    parser.add_argument("--batch", help="examples of a step on all nodes (default: those of the config)")
    parser.add_argument("--nodes", default="1,2,4,8,16,32,64", help="numbers of nodes (default: 1 to 64)")
    parser.add_argument(
        "--flop_per_second",
        required=True,
        help="the speed of a node: examples a second of a run on it, times the FLOP of an example",
    )
    parser.add_argument("--bytes_per_second", required=True, help="what a node sends")
    parser.add_argument("--latency_seconds", default="0", help="of a round of messages (default: 0)")
    parser.add_argument(
        "--overlap", default="0", help="how far the two phases of an all-reduce take place at once (default: 0)"
    )
    parser.add_argument("--parallel", choices=get_args(Parallel), default="data", help="(default: data)")
    parser.add_argument("--methods", default="mean", help="reducers and encodings, with commas (default: mean)")
    return parser.run(find, argv)
