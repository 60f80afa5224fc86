"""The bytes that a transformer block sends on 64 devices in one, two and two and a half dimensions."""

from typing import Any

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Finding, Quoted, Table
from experiments.study.prose import beside
from experiments.study.rule import Bound, Need, Rule
from experiments.study.run import Row, Rows, repeated
from tensor_parallel import cost, published_bandwidth

DEEP, FLAT = {"q": 4, "d": 4}, {"q": 8, "d": 1}
HIDDEN = (1024, 2048, 4096, 8192)
ROWS = tuple(1 << power for power in range(10, 18))  # examples times tokens
# (rows, hidden size) of the figure's arrangements of 64 devices, which are not known.
OF_THE_FIGURE: tuple[tuple[int, int], ...] = ()
LEAST, MOST = 1.2, 1.7
MARK = "READ, abstract"
NAMES = {"one": "1-D", "two": "8 x 8 x 1", "deep": "4 x 4 x 4"}


def _measure(*, hidden: int, seed: int) -> dict[str, Any]:
    """Returns the megabytes and the rounds of a block, for each number of rows."""
    del seed  # nothing is drawn
    return {"shapes": [{"rows": rows, "hidden": hidden, **_sent(rows, hidden)} for rows in ROWS]}


def _sent(rows: int, hidden: int) -> dict[str, float]:
    """Returns the megabytes that a device sends for a block, and the rounds, by arrangement; numbers of 4 bytes."""
    block = [(rows, hidden, 3 * hidden), (rows, hidden, hidden), (rows, hidden, 4 * hidden), (rows, 4 * hidden, hidden)]
    deep, flat = cost(block, **DEEP), cost(block, **FLAT)
    sent = {"one": deep["1-D"], "two": flat["2.5-D"], "deep": deep["2.5-D"]}
    found = {name: each.bytes / 1e6 for name, each in sent.items()}
    return {**found, **{f"{name}_rounds": each.rounds for name, each in sent.items()}}


def _ratio(row: Row) -> float:
    """Returns the bytes of 8 x 8 x 1 over those of 4 x 4 x 4."""
    return row["two"] / row["deep"]


def _shapes(rows: Rows) -> list[Row]:
    """Returns what runs found for each shape, once."""
    return [shape for row in rows if row["seed"] == rows[0]["seed"] for shape in row["shapes"]]


def _of_the_figure(rows: Rows) -> list[Row]:
    return [row for row in _shapes(rows) if (row["rows"], row["hidden"]) in OF_THE_FIGURE]


def _lacks_shapes(rows: Rows) -> str:
    return "" if _of_the_figure(rows) else "The figure's batches and hidden sizes are not known."


def _findings(rows: Rows) -> list[Finding]:
    rows = _shapes(rows)
    published = published_bandwidth(**FLAT) / published_bandwidth(**DEEP)
    inside = [row["rows"] / row["hidden"] for row in rows if LEAST <= _ratio(row) <= MOST]
    less = [row["rows"] / row["hidden"] for row in rows if _ratio(row) > 1]
    more = [row["rows"] / row["hidden"] for row in rows if _ratio(row) < 1]
    ratios = sorted(map(_ratio, rows))
    one = [row["deep"] / row["one"] for row in rows]
    quantity = "bytes of 8 x 8 x 1 over those of 4 x 4 x 4, least and most of all shapes"
    return [
        Finding(quantity, ours=f"{ratios[0]:.2f} to {ratios[-1]:.2f}", paper=Quoted("1.45 in efficiency", MARK)),
        Finding("the same by the published formula", ours=f"{published:.2f}"),
        Finding("rows over hidden size where 4 x 4 x 4 sends less", ours=_from(less)),
        Finding("rows over hidden size where 8 x 8 x 1 sends less", ours=_from(more)),
        Finding(f"rows over hidden size where the ratio lies in {LEAST} to {MOST}", ours=_from(inside)),
        Finding("bytes of 4 x 4 x 4 over those of 64 in one dimension", ours=f"{min(one):.2f} to {max(one):.2f}"),
    ]


def _from(values: list[float]) -> str:
    return f"{min(values):g} to {max(values):g}" if values else "none of the shapes"


def _table(rows: Rows) -> Table:
    rows = _shapes(rows)
    cells = []
    for row in sorted(rows, key=lambda row: (row["hidden"], row["rows"])):
        sent = [f"{row[key]:,.0f}" for key in NAMES]
        cells.append([f"{row['hidden']:,}", f"{row['rows']:,}", *sent, f"{_ratio(row):.2f}"])
    rounds = ", ".join(f"{rows[0][f'{key}_rounds']} ({name})" for key, name in NAMES.items())
    note = f"Megabytes that a device sends for a block, forward and backward, numbers of 4 bytes; rounds: {rounds}."
    return Table(["Hidden size", "Rows", *NAMES.values(), "8 x 8 x 1 over 4 x 4 x 4"], cells, note)


def _draw(rows: Rows, figure: Figure) -> None:
    rows = _shapes(rows)
    left, right = figure.subplots(1, 2)
    chosen = ask.select(rows, hidden=max(ask.distinct(rows, "hidden")))
    for position, (key, name) in enumerate(NAMES.items()):
        line = sorted((row["rows"], row[key]) for row in chosen)
        left.plot(*zip(*line, strict=True), label=name, **drawing.look(position))
    left.set(xscale="log", yscale="log", xlabel="rows", ylabel="MB sent by a device")
    left.set_title(f"hidden size {chosen[0]['hidden']:,}", fontsize=9)
    left.legend(fontsize=7)
    line = sorted({(row["rows"] / row["hidden"], round(_ratio(row), 6)) for row in rows})
    right.plot(*zip(*line, strict=True), **drawing.look(0))
    right.axhline(1, **drawing.REFERENCE)
    right.axhline(1.45, linestyle="--", label="the paper's efficiency", **drawing.REFERENCE)
    right.axhspan(LEAST, MOST, color="#009E73", alpha=0.08, linewidth=0, label=f"{LEAST} to {MOST}")
    right.set(xscale="log", xlabel="rows over hidden size", ylabel="bytes, 8 x 8 x 1 over 4 x 4 x 4")
    right.legend(fontsize=7)


RULE = Rule(
    setting="of a transformer block's four products, by their costs",
    needs=[Need("the batches and hidden sizes of the figure are not known", _lacks_shapes)],
    parts=lambda scale: [
        Bound(
            words="the ratio of steps, 8 x 8 x 1 over 4 x 4 x 4, at the shapes that the figure states",
            values=lambda rows: list(map(_ratio, _of_the_figure(rows))),
            least=LEAST,
            most=MOST,
        )
    ],
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    hours={"smoke": 0.01, "laptop": 0.02},
    runs=repeated(
        lambda scale: [{"hidden": hidden} for hidden in (HIDDEN[:1] if scale == "smoke" else HIDDEN)],
        seeds={"smoke": 1, "laptop": 3},
    ),
    measure=_measure,
    findings=_findings,
    basis=lambda rows: ask.basis(rows, data="arithmetic", model="a transformer block"),
    table=_table,
    draw=_draw,
    inches=(7.0, 3.2),
)
