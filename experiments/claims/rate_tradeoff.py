"""The learning rate at 100 workers and 6 backups: what it does to the final accuracy, and to the way there."""

from fractions import Fraction

from experiments import datasets, drawing, paper_table, tuning
from experiments import rows as ask
from experiments.drawing import Figure
from experiments.experiment import Experiment, Finding, Quoted, Rows, Run, Sample, Scale, Table, Verdict, evaluations_of
from experiments.paper_table import Cell
from experiments.tuning import Tuned

BASES = (0.0005, 0.001, 0.002, 0.004)  # of one worker; the linear rule multiplies it by the 100 that are waited for
PAPER = {0.25: ("77.29 %", 131), 0.5: ("77.75 %", 164), 1.0: ("78.15 %", 190), 2.0: ("78.17 %", 193)}
FACTORS = tuple(PAPER)  # of the linear rule's rate
EPOCHS = {"digits": 400, "mnist": 30}  # on digits, an epoch is less than an update
DECAYS = 95  # of the learning rate, by 0.94: as many as in the paper's 190 epochs
EVALUATIONS = {"smoke": 2, "laptop": 60}
MARGIN = 2.0  # standard errors
NEAR = 0.001  # of accuracy: what counts as converged
TARGETS = (0.9, 0.93, 0.95, 0.96, 0.97)  # accuracies to which the epochs are told, whatever the rule


def _recipe(scale: Scale, *, base: float, factor: float) -> Run:
    data = datasets.image_set(scale)
    epochs = 8 if scale == "smoke" else EPOCHS[data["data.name"]]
    overrides = {
        **data,
        "model.name": "mlp",
        "optimizer.learning_rate": base * factor,
        "schedule.every_epochs": epochs / DECAYS,
        **tuning.epochs(epochs, evaluate=epochs / EVALUATIONS[scale]),
    }
    return Run(labels={"data": data["data.name"]}, spec="configs/mnist_backup_106.py", overrides=overrides)


TUNED = Tuned(
    points=lambda scale: [{"factor": factor} for factor in FACTORS],
    tuned_at=lambda scale, point: {"factor": 1.0},
    grid=lambda scale, point: BASES,
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 3},
    key="base",
    first=("base",),
    tuning_seeds=tuning.ONE_SEED,
)


def _finals(rows: Rows) -> dict[float, Rows]:
    """Returns the reported rows of each multiple of the rate, ascending."""
    tests = TUNED.tests(rows)
    return {factor: ask.select(tests, factor=factor) for factor in ask.distinct(tests, "factor")}


def _target(rows: Rows) -> float:
    """Returns the modest target: the highest accuracy, in steps of 0.1 %, that every reported run gets to."""
    return ask.reached_by_all(TUNED.tests(rows), of="accuracy", parts=1000)


def _epochs(rows: Rows, target: float) -> Sample:
    return ask.until(rows, target, of="accuracy", along="epoch", digits=1)


def _to_converge(rows: Rows) -> Sample:
    """Returns the epochs until a run is within 0.1 points of its own best."""
    found = [ask.first_at(row, max(row["accuracy"]) - NEAR, of="accuracy", along="epoch") for row in rows]
    return Sample.of(found, digits=1)


def _paper_table(rows: Rows) -> Table:
    """Returns the paper's table, a line for each rate, and the epochs to several accuracies, which it does not give."""
    cells = {}
    for factor, same in _finals(rows).items():
        accuracy, epochs = PAPER[factor]
        quoted = Quoted(accuracy, "MEM med-hi"), Quoted(f"{epochs}", "DERIVED from MEM med-hi")
        ours = [ask.accuracy(same), _to_converge(same)]
        several = [Cell(None, _epochs_in_words(same, target)) for target in TARGETS]
        cells[f"{Fraction(factor)}"] = [*map(Cell, quoted, ours), *several]
    columns = ["final accuracy", "epochs to converge", *(f"epochs to {100 * target:g} %" for target in TARGETS)]
    note = "Paper: Inception on ImageNet; ours: to within 0.1 points of the run's best counts as converged."
    return paper_table.table("Rate (× linear rule's)", columns, cells, note=note)


def _epochs_in_words(rows: Rows, target: float) -> Sample | str:
    there = sum(max(row["accuracy"]) >= target for row in rows)
    return _epochs(rows, target) if there == len(rows) else f"{there} of {len(rows)} runs get there"


def _findings(rows: Rows) -> list[Finding]:
    target, found = _target(rows), []
    for factor, same in _finals(rows).items():
        accuracy, epochs = PAPER[factor]
        name = f"{Fraction(factor)} of the linear rule's rate"
        quoted = (
            Quoted(f"{accuracy}, Inception on ImageNet", "MEM med-hi"),
            Quoted(f"{epochs}", "DERIVED from MEM med-hi"),
        )
        to_converge = f"epochs to converge, {name} (ours: to within 0.1 points of the run's best)"
        found += [
            Finding(f"test accuracy, {name}", paper=quoted[0], ours=ask.accuracy(same)),
            Finding(to_converge, paper=quoted[1], ours=_to_converge(same)),
            Finding(f"epochs to {100 * target:.1f} %, {name}", ours=_epochs(same, target)),
        ]
    return found


def _judge(rows: Rows) -> Verdict:
    finals, seeds = _finals(rows), TUNED.seeds["laptop"]
    if set(finals) != set(FACTORS) or min(map(len, finals.values())) < seeds:
        return Verdict.untested(f"The rule needs {seeds} seeds of each of {len(FACTORS)} rates.")
    best = max(finals, key=lambda factor: ask.accuracy(finals[factor]).mean)
    ours, highest = (ask.accuracy(finals[factor]) for factor in (min(FACTORS), best))
    target = _target(rows)
    epochs = [_epochs(finals[factor], target) for factor in (min(FACTORS), best)]
    lower, earlier = ask.above(highest, ours, errors=MARGIN), epochs[0].mean < epochs[1].mean
    return Verdict.of(
        lower and earlier,
        f"A quarter of the rate ends at {ours}, the best of the four rates, {Fraction(best)} of the linear rule's, at "
        f"{highest}: it is {'' if lower else 'not '}lower by more than {MARGIN:g} standard errors. To "
        f"{100 * target:.1f} % it takes {epochs[0]} epochs against {epochs[1]}: it is {'' if earlier else 'not '}there "
        "in fewer.",
    )


def _table(rows: Rows) -> Table:
    cells = [[f"{row['base']:g}", f"{100 * ask.last(row, 'accuracy'):.2f}"] for row in TUNED.tried(rows)]
    picked = TUNED.picked(rows) if TUNED.is_tuned("laptop", rows, {}) else 0
    note = f"Picked: {picked:g} times 100; on {', '.join(ask.distinct(rows, 'data'))}."
    return Table(("Rate of one worker", "Validation accuracy (%), seed 0"), cells, note)


def _draw(rows: Rows, figure: Figure) -> None:
    finals = _finals(rows)
    levels, curves = figure.subplots(1, 2)
    if not finals:
        return
    drawing.band(levels, list(finals), [ask.accuracy(same) for same in finals.values()], position=0, label="ours")
    groups = {str(Fraction(factor)): ask.errors(same) for factor, same in finals.items()}
    drawing.curves(curves, groups, along="epoch", of="error", marker="", linewidth=1.2)
    curves.axhline(100 * (1 - _target(rows)), label="modest target", **drawing.REFERENCE)
    levels.set(xlabel="learning rate (× linear rule's)", ylabel="final test accuracy (%)", xscale="log")
    drawing.ticks(levels, {factor: str(Fraction(factor)) for factor in finals})
    curves.set(xlabel="epochs", ylabel="test error (%)", yscale="log")
    drawing.plain_numbers(curves.yaxis)
    curves.legend(fontsize=8, title="× linear rule's", title_fontsize=8)


EXPERIMENT = Experiment(
    number=5,
    title="The learning rate at 100 workers",
    claim="With 100 workers and 6 backups a smaller learning rate gets to a modest accuracy in fewer epochs, but not "
    "to the highest final accuracy.",
    source="arXiv 1604.00981, table of learning rates for N = 100, b = 6",
    rule="By mean test accuracy over three seeds, at 1/4, 1/2, 1 and 2 of the linear rule's rate. Supported if the "
    f"final accuracy of 1/4 is below that of the best rate by more than {MARGIN:g} standard errors of the difference, "
    "and if 1/4 takes fewer epochs than the best rate to the modest target: the highest accuracy, in steps of 0.1 %, "
    "that every run gets to.",
    selection="The rate of one worker, which the linear rule multiplies by 100, by accuracy after the last update on "
    "the validation split, at 100 + 6 workers, seed 0, over 0.0005, 0.001, 0.002, 0.004.",
    hours={"smoke": 0.05, "laptop": 0.15},
    runs=TUNED.runs,
    reduce=evaluations_of("step", "epoch", "accuracy"),
    findings=_findings,
    basis=lambda rows: TUNED.basis(rows, model="MLP"),
    tuned=TUNED,
    judge=_judge,
    paper_table=_paper_table,
    table=_table,
    draw=_draw,
    inches=(7.0, 3.2),
    notes=(
        "MLP with 128 hidden units; the paper's recipe: batches of 32, RMSProp (0.9, 0.9, epsilon 1), moving average "
        "0.9999. 30 epochs of MNIST, 562 updates, where the paper has 190 and 76,000; the rate falls by 0.94 as often "
        "over ours as over its 190, to 0.003 of the peak. The paper's modest precision is not known, nor when it took "
        "a run as converged. Where scikit-learn's digits stand in for MNIST, 400 epochs, 180 updates.",
    ),
)
