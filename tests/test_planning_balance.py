"""Balance and network against tables computed by hand, XLA's count of operations, and brute force; what is refused."""

import json

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import reducers
from configs import flags
from planning import __main__ as planning
from planning import balance, layers
from planning.network import Network
from reducers.wrappers import communication
from tests import ROOT
from tests.refused import only_line_of

TABLES = ROOT / "experiments" / "claims" / "pcl_scaling"
NETWORKS = ("vgg_a", "overfeat_fast")
NODE = balance.Node(1.5e12, Network(1e10), overlap=1.0)
FC = layers.of_shapes("fc", ifm=4096, ofm=4096, kw=1, kh=1, iw=1, ih=1, ow=1, oh=1)


def model(name):
    return layers.read_table(str(TABLES / f"{name}.csv"))


def shaped(name):
    """A network of the shapes in a table, without what is no product: params, image -> logits."""
    rows = [line.split(",") for line in (TABLES / f"{name}.csv").read_text().splitlines()[1:]]
    shapes = {row[0]: [int(number) for number in row[1:]] for row in rows}

    def forward(params, image):
        x = image
        for layer, (ifm, _, kw, _, iw, _, ow, oh) in shapes.items():
            if kw == 1:
                x = x.reshape(1, -1)[:, :ifm] @ params[layer].reshape(ifm, -1)
                continue
            if (by := x.shape[1] // iw) > 1:  # pooled
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, by, by, 1), (1, by, by, 1), "VALID")
            stride = 4 if (layer, name) == ("conv1", "overfeat_fast") else 1
            edge = (stride * (ow - 1) + kw - x.shape[1]) // 2  # in full, as XLA leaves out products with padding
            x = jnp.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
            numbers = ("NHWC", "HWIO", "NHWC")
            x = lax.conv_general_dilated(x, params[layer], (stride, stride), "VALID", dimension_numbers=numbers)
            assert x.shape[1:3] == (oh, ow)
        return x

    image = jax.ShapeDtypeStruct((1, shapes["conv1"][4], shapes["conv1"][5], 3), jnp.float32)
    params = {
        layer: jax.ShapeDtypeStruct((kh, kw, ifm, ofm), jnp.float32) for layer, (ifm, ofm, kw, kh, *_) in shapes.items()
    }
    return forward, params, image


def counted_by_xla(function, *shapes):
    return jax.jit(function).lower(*shapes).cost_analysis()["flops"]


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_are_those_of_a_traced_network_and_xla_counts_as_many_operations(name):
    forward, params, image = shaped(name)
    ours = sum(layer.flop for layer in model(name).layers)
    assert ours == pytest.approx(counted_by_xla(forward, params, image), rel=0.05)
    traced = layers.trace(forward, params, image)
    assert [one[:3] for one in traced] == [one[:3] for one in model(name).layers]  # inputs are with their padding


def test_resnet50_by_hand():
    config = flags.load("configs/imagenet_resnet50.py", ["--config.model.dtype=float32"])
    found = layers.of_config(config)
    assert sum(layer.weights for layer in found.layers) == 25_557_032
    at = {layer.name: layer for layer in found.layers}
    width, size, into = 64, 56, 64
    total = 7 * 7 * 3 * 64 * 112 * 112
    for stage, blocks in enumerate((3, 4, 6, 3), 1):  # 1x1, 3x3 (which has the stride), 1x1 to four times the width
        for block in range(1, blocks + 1):
            before = size if block > 1 or stage == 1 else 2 * size
            hand = {
                "conv1": (into * width * before**2, into * width),
                "conv2": (9 * width**2 * size**2, 9 * width**2),
                "conv3": (4 * width**2 * size**2, 4 * width**2),
            }
            if block == 1:
                hand["shortcut_conv"] = (4 * into * width * size**2, 4 * into * width)
            for layer, (products, weights) in hand.items():
                one = at.pop(f"stage{stage}_block{block}/{layer}")
                assert (one.flop, one.weights) == (2 * products, weights), (stage, block, layer)
                total += products
            into = 4 * width
        width, size = 2 * width, size // 2
    assert set(at) == {"stem_conv", "dense", layers.OTHERS}
    assert sum(layer.flop for layer in found.layers) == 2 * (total + 2048 * 1000)


def test_products_of_data_alone_have_no_weights_and_shared_weights_are_sent_once():
    def loss(params, x):
        h = x @ params["a"]
        for _ in range(2):
            h = jax.jit(lambda w, h: h @ w)(params["b"], h)
        scores, _ = lax.scan(lambda c, w: (c @ w, None), h, params["c"])
        return jnp.sum(scores @ h.T) + jnp.sum(params["bias"])

    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)  # noqa: E731
    params = {"a": shape(4, 8), "b": shape(8, 8), "c": shape(3, 8, 8), "bias": shape(5)}
    found = layers.trace(loss, params, shape(1, 4))
    assert [layer.weights for layer in found] == [32, 64, 0, 64, 0, 133]
    assert [layer.flop for layer in found] == [64, 128, 128, 3 * 128, 16, 0]
    assert found[-2].inputs == 16 and found[-1].name == layers.OTHERS


# ---- groups ----------------------------------------------------------------------------------------------------------


def test_groups_are_those_of_brute_force():
    draw = np.random.default_rng(0)
    for _ in range(200):
        ifm, ofm, size = (int(draw.integers(1, most)) for most in (2000, 2000, 30))
        k = int(draw.integers(1, 8))
        layer = layers.of_shapes("x", ifm=ifm, ofm=ofm, kw=k, kh=k, iw=size, ih=size, ow=size, oh=size)
        given = {"batch": int(draw.integers(1, 4096)), "num_nodes": int(draw.integers(1, 257))}
        given["node"] = NODE._replace(overlap=float(draw.uniform()))
        moved = {n: balance.volume(layer, n, **given) for n in range(1, 257) if given["num_nodes"] % n == 0}
        _, found = balance.best_groups(layer, **given)
        assert moved[found] == min(moved.values())


def test_the_least_batch_hides_its_own_exchange():
    conv = layers.of_shapes("c", ifm=64, ofm=128, kw=3, kh=3, iw=10, ih=10, ow=10, oh=10)
    for layer, by_hand in ((FC, 100.0), (conv, 1.0)):  # 150 FLOP/B over 1.5 ow oh
        least = balance.least_batch(layer, NODE)
        assert least == pytest.approx(by_hand)
        computing = 3 * layer.flop * least / NODE.flop_per_second
        assert computing == pytest.approx(NODE.network.seconds(NODE.gradient_bytes(layer)))


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_a_step_is_that_of_a_loop_over_events():
    """Gradients wait for the backward pass and for the network, one after another, as a clock has it."""
    found = model("overfeat_fast").layers
    for nodes in (2, 16, 128):
        node = NODE._replace(network=Network(2e9), overlap=0.5)
        step = balance.step(found, batch=256, num_nodes=nodes, node=node)
        clock = sum(layer.flop for layer in found) * 256 / nodes / node.flop_per_second
        free = 0.0
        for layer in reversed(found):
            clock += 2 * layer.flop * 256 / nodes / node.flop_per_second
            free = max(free, clock) + 4 * layer.weights * 1.5 / 2e9
        assert step.seconds == pytest.approx(max(clock, free))
        assert step.computing == pytest.approx(clock)
        assert step.efficiency == pytest.approx(clock / max(clock, free))
    fast = balance.step(found, batch=256, num_nodes=16, node=node._replace(network=Network(1e30)))
    assert fast.speed_up == pytest.approx(16) and not fast.costs[1:].any()


@pytest.mark.parametrize("bandwidth", [2e9, 1e10, 1e11])
def test_a_layer_costs_what_a_step_without_its_gradient_saves(bandwidth):
    """Whoever only waits behind another layer has no more than its own exchange."""
    found = model("vgg_a").layers
    given = {"batch": 256, "num_nodes": 64, "node": NODE._replace(network=Network(bandwidth), overlap=0.0)}
    for method in (balance.MEAN, balance.Method("8 steps", every_steps=8), balance.Method("late", delay_steps=2)):
        step = balance.step(found, method=method, **given)
        for i, layer in enumerate(found):
            without = balance.step([*found[:i], layer._replace(weights=0), *found[i + 1 :]], method=method, **given)
            assert step.costs[i] == pytest.approx(step.seconds - without.seconds, abs=1e-12)
        assert step.waits == pytest.approx(step.seconds - step.computing, abs=1e-12)
        if method.every_steps == 8 or (method is balance.MEAN and bandwidth < 1e11):
            assert found[np.argmax(step.costs)].name == "fc6" and step.costs.max() < step.waits


def test_methods_cost_what_their_traffic_says():
    one = model("overfeat_fast")
    names = (
        "mean",
        "local_sgd:every_steps=8",
        "local_sgd:every_steps=8,delay_steps=4",
        "mean+top_k:ratio=0.01",
    )
    mean, local, delayed, sparse = (balance.parse_method(name, one.params) for name in names)
    assert mean.sends(8) == (7 / 8, 2 * 3 * len(one.layers))
    assert sparse.sends(8)[0] < 0.1 < mean.sends(8)[0] and (local.every_steps, delayed.delay_steps) == (8, 4)
    given = {"batch": 256, "num_nodes": 8, "node": balance.Node(1.5e12, Network(1e8))}
    times = {m.name: balance.step(one.layers, method=m, **given).seconds for m in (mean, local, delayed, sparse)}
    assert times[delayed.name] < times[local.name] < times[mean.name]
    assert times[sparse.name] < times[mean.name]
    computing = balance.step(one.layers, **given).computing
    exchange = 2 * 7 / 8 * 4 * sum(layer.weights for layer in one.layers) / 1e8
    assert times[local.name] == pytest.approx(computing + exchange / 8)
    assert times[delayed.name] == pytest.approx(computing + max(0.0, exchange - 4 * computing) / 8)


TRAFFIC = {
    "mean": reducers.mean("worker"),
    "adasum": reducers.adasum("worker"),
    "sum+half": communication.make("half", reducer=reducers.sum("worker"), axis_name="worker"),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("nodes", [2, 3, 64])
@pytest.mark.parametrize("name", TRAFFIC)
def test_a_step_sends_what_the_traffic_says(name, nodes, dtype):
    """Both phases of an all-reduce, each without a node's own part; also where parameters have two bytes."""
    params = [jax.ShapeDtypeStruct((4096, 4096), dtype)]
    method = balance.parse_method(name, params)
    sent = reducers.traffic(TRAFFIC[name], params, axis_sizes={"worker": nodes}).bytes_per_worker
    for overlap, counted in ((0.0, 1.0), (1.0, 0.5)):
        node = balance.Node(1e12, Network(1e9), overlap)
        found = balance.step([FC], batch=256, num_nodes=nodes, node=node, method=method)
        assert found.sent.sum() == pytest.approx(counted * sent)


def test_groups_send_what_the_traffic_of_the_groups_says():
    """A layer that nodes of a group share is exchanged between the groups: not at all if there is one."""
    one = model("overfeat_fast")
    node = balance.Node(1.5e12, Network(1e8))
    given = {"batch": 64, "num_nodes": 8, "parallel": "hybrid", "node": node}
    found = balance.step(one.layers, method=balance.parse_method("mean", one.params), **given)
    assert {int(groups) for groups in found.groups} > {8} and min(found.groups) < 8
    for layer, groups, sent in zip(one.layers, found.groups, found.sent, strict=True):
        assert sent == pytest.approx(2 * (groups - 1) / groups * 4 * layer.weights * groups / 8)


# ---- the command -----------------------------------------------------------------------------------------------------

NEEDED = ["--flop_per_second=1e12", "--bytes_per_second=1e9"]
REFUSED = {
    "--layers={vgg} --batch=256 --bytes_per_second=1": "flop_per_second",
    "--layers={vgg} --batch=256 --flop_per_second=1 --bytes_per_second=nan": "bytes_per_second='nan'",
    "--layers={vgg} --batch=256 --flop_per_second=1e308 --bytes_per_second=1": "must be a number in [1e-30, 1e+30]",
    "--layers={vgg} --batch=1e-320 {needed}": "batch='1e-320': must be a number in [1e-30, 1e+30]",
    "--layers={vgg} --batch=256 --latency_seconds=1e308 {needed}": "latency_seconds='1e308': must be a number in [0, 1",
    "--layers={vgg} {needed}": "batch: is needed with --layers",
    "--layers={vgg} --batch=256 --config=configs/digits.py {needed}": "config, layers: name one of the two",
    "{needed}": "config, layers: name one of the two",
    "--layers={vgg} --batch=256 --nodes=0,2 {needed}": "nodes='0,2': must be whole numbers from 1 to 65536",
    "--layers={vgg} --batch=256 --nodes={many} {needed}": "nodes: names 257 numbers, must name at most 256",
    "--layers={vgg} --batch=256 --methods=mean,adasum,mean {needed}": "'mean,adasum,mean': must name 'mean' once",
    "--layers={vgg} --batch=256 --overlap=1.5 {needed}": "overlap='1.5': must be a number in [0, 1]",
    "--layers={vgg} --batch=256 --methods=meen {needed}": "methods='meen'",
    "--layers={vgg} --batch=256 --methods=mean+top_q {needed}": "methods='mean+top_q'",
    "--layers={vgg} --batch=256 --methods=local_sgd:every {needed}": "'every' must be key=value",
    "--layers={here}/nothing.csv --batch=256 {needed}": "nothing.csv",
    "--layers={here}/bad.csv --batch=256 {needed}": "must be a CSV file with the columns name, ifm",
    "--config=configs/nope.py {needed}": "nope",
}


@pytest.mark.parametrize("line", REFUSED)
def test_balance_refuses_in_one_line(line, tmp_path, capsys):
    (tmp_path / "bad.csv").write_text("name,ifm\nx,1\n")
    names = {"vgg": TABLES / "vgg_a.csv", "here": tmp_path, "needed": " ".join(NEEDED)}
    names["many"] = ",".join(map(str, range(1, 258)))
    assert planning.main(["balance", *line.format(**names).split()]) == 2
    assert REFUSED[line] in only_line_of(capsys)


def test_balance_prints_writes_and_draws(tmp_path, capsys):
    files = [f"--json={tmp_path / 'a.json'}", f"--figure={tmp_path / 'a.png'}", "--methods=mean,adasum"]
    assert planning.main(["balance", "--config=configs/digits.py", "--nodes=1,64", *NEEDED, *files]) == 0
    printed = capsys.readouterr().out
    assert "both phases of an all-reduce count" in printed
    assert "Dense_1" in printed and "adasum, 64 nodes: " in printed and "nothing measured" in printed
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["balance"] == 1000
    assert [(one["method"], one["nodes"]) for one in found["steps"]] == [
        *(("mean", 1), ("mean", 64), ("adasum", 1), ("adasum", 64))
    ]
    assert found["binding"]["mean"][0] == "Dense_0" and "\nmean, 64 nodes: 0.2% efficient; waits " in printed
    assert " s a step for Dense_0 (" in printed and "inf" not in printed
    rest = found["layers"][-1]
    assert (rest["layer"], rest["least batch"], rest["G*"]) == (layers.OTHERS, "none", "all")
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert found["overlap"] == 0 and sum(one["MB sent"] for one in found["layers"]) > 0


def test_commands_are_listed_and_unknown_ones_refused(capsys):
    assert planning.main([]) == 0 and planning.main(["--help"]) == 0
    assert "balance" in capsys.readouterr().out
    assert planning.main(["plan"]) == 2
    assert "'plan': must be one of backups, balance, scale, choose" in capsys.readouterr().err
