"""The learning rate at 100 workers and 6 backups: what it does to the final accuracy, and to the way there."""

from fractions import Fraction

from experiments.plots import drawing
from experiments.study import datasets, figures, frames, tuning
from experiments.study.claim import Figure, Frame, Rows, Run, Scale, Value, beside, evaluations_of
from experiments.study.verdict import Verdict, decide, holm, not_finite, untested, welch

# Factor of the linear rule's rate -> the paper's rate, test precision@1, iterations and epochs to converge.
PAPER = {
    0.25: "rate 1.125: 77.29 %, 52,628 iterations [MEM med-hi]; 131 epochs [DERIVED from MEM med-hi]",
    0.5: "rate 2.25: 77.75 %, 65,811 iterations [MEM med-hi]; 164 epochs [DERIVED from MEM med-hi]",
    1.0: "rate 4.5: 78.15 %, 76,209 iterations [MEM med-hi]; 190 epochs [DERIVED from MEM med-hi]",
    2.0: "rate 9.0: 78.17 %, 77,235 iterations [MEM med-hi]; 193 epochs [DERIVED from MEM med-hi]",
}
FACTORS = tuple(PAPER)
LOW, FULL = 0.25, 1.0  # the two factors that the rule compares
DECAYS = 95  # how often the learning rate falls by the factor 0.94, as in the paper's 190 epochs
TARGETS = {"digits": 0.9, "mnist": 0.95, "cifar10": 0.85}  # modest accuracies, stated before the runs
SEVERAL_TARGETS = (0.9, 0.93, 0.95, 0.96, 0.97)  # accuracies to which the epochs are reported, whatever the rule
LEAST_UPDATES = 3000  # with fewer, a low rate is slower to everything
NEAR = 0.001  # a run this near to its best accuracy has converged


# Rates of one worker that are tried; the linear rule multiplies them by the 100 that are waited for.
BASES, GPU_BASES = (0.0005, 0.001, 0.002, 0.004), (0.002, 0.004, 0.008)
EPOCHS = {"smoke": 8, "laptop": 30, "gpu": 60}
EVALUATIONS = {"smoke": 2, "laptop": 60, "gpu": 60}
STAND_IN_EPOCHS = 400  # on digits, an epoch is less than an update
RESNET = {**datasets.RESNET, "batch_size_per_worker": 8}  # at scale gpu


def _recipe(scale: Scale, *, base: float, factor: float) -> Run:
    model = RESNET if scale == "gpu" else {**datasets.image_set(scale), "model.name": "mlp"}
    is_stand_in = scale == "laptop" and model["data.name"] == datasets.STAND_IN
    epochs = STAND_IN_EPOCHS if is_stand_in else EPOCHS[scale]
    checkpoint = epochs / 6 if scale == "gpu" else None  # a run that is stopped goes on from there
    overrides = {
        **model,
        "optimizer.learning_rate": base * factor,
        "schedule.every_epochs": epochs / DECAYS,
        **tuning.epochs(epochs, evaluate=epochs / EVALUATIONS[scale], checkpoint=checkpoint),
    }
    return Run(spec="configs/mnist_backup_106.py", overrides=overrides)


TUNED = tuning.Tuned(
    points=lambda scale: [{"factor": factor} for factor in FACTORS],
    tuned_at=lambda scale, point: {"factor": FULL},
    grid=lambda scale, point: GPU_BASES if scale == "gpu" else BASES,
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 3, "gpu": 3},
    key="base",
    value="rate of one worker",
    first=("base",),
    tuning_seeds=tuning.ONE_SEED,
    extensions={"laptop": 0},  # whose runs are too short to decide, whatever the rate
)


def frame(rows: Rows) -> Frame:
    """Returns the reported runs: accuracy at the end in percent, and the way to several accuracies.

    A run counts as converged from its first evaluation within 0.1 points of its own best.
    """
    df = TUNED.frame(rows)
    best = df["accuracy"].map(max) - NEAR
    return df.assign(
        end=100 * frames.last(df, "accuracy"),
        updates=frames.last(df, "step"),
        way=frames.until(df, df["data"].map(TARGETS), along="epoch"),
        steps_to_converge=frames.until(df, best),
        epochs_to_converge=frames.until(df, best, along="epoch"),
        **{f"to {target:%}": frames.until(df, target, along="epoch") for target in SEVERAL_TARGETS},
    )


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    updates = df.loc[df["factor"].isin([LOW, FULL]), "updates"].min(skipna=False)
    if not updates >= LEAST_UPDATES:
        return untested(
            f"A run has {updates:.0f} updates. With fewer than {LEAST_UPDATES:,} it is the number of updates that "
            "limits training, so that a lower rate is slower to everything."
        )
    ends, ways = (frames.groups(df, "factor", column) for column in ("end", "way"))
    low, full = f"{Fraction(LOW)} of it", "the rate that was picked"
    if late := not_finite({low: ways[LOW], full: ways[FULL]}):
        return untested(f"A value is not finite in a run of {late}.")
    tests = [
        welch(low, ends[LOW], "below", f"{full} in accuracy", ends[FULL], unit="points"),
        welch(low, ways[LOW], "below", f"{full} in epochs", ways[FULL], unit="epochs", digits=1),
    ]
    return decide(holm(*tests))


def _draw(df: Frame, figure: Figure) -> None:
    levels, curves = figure.subplots(1, 2)
    target = TARGETS[df["data"].iloc[0]]
    y, xlabel = {"end": "final test accuracy (%)"}, "learning rate (× linear rule's)"
    figures.values(levels, df, x="factor", y=y, xlabel=xlabel, xscale="log", legend=False)
    drawing.ticks(levels.xaxis, df["factor"], lambda factor: str(Fraction(factor)))
    df = df.sort_values("factor").assign(times=df["factor"].map(Fraction))
    errors = df.assign(error=frames.errors(df))
    ylabel = "test error (%)"
    figures.curves(
        curves, errors, along="epoch", of="error", by="times", marker="", xlabel="epochs", ylabel=ylabel, yscale="log"
    )
    figures.line(curves, 100 * (1 - target), f"{100 * target:g} %")
    curves.legend(title="× linear rule's")


CLAIM = TUNED.claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.05, "laptop": 0.25, "gpu": 0.48},
    reduce=evaluations_of("step", "epoch", "accuracy"),
    frame=frame,
    model=lambda df: "ResNet-20" if "cifar10" in set(df["data"]) else "MLP",
    labels=["factor"],
    values={
        "test accuracy at the end": Value("end", unit="%"),
        "iterations to converge": Value("steps_to_converge", 0),
        "epochs to converge": Value("epochs_to_converge", 1),
        "epochs to the target": Value("way", 1),
        **{f"epochs to {100 * target:g} %": Value(f"to {target:%}", 1) for target in SEVERAL_TARGETS},
    },
    paper=PAPER,
    draw=_draw,
    inches=(7.0, 3.2),
)
