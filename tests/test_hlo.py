"""The reader of compiled programs: on texts whose counts are known, and against what JAX traces."""

import jax
import pytest
from jax import numpy as jnp

import reducers
from benchmarks.kit.candidates import defaults, parse
from benchmarks.kit.reducer_times import compile_reducer
from parallel import Layout
from tests import hlo

SEVEN_EIGHTHS = 7 / 8


def program(*lines: str, before: str = "") -> str:
    body = "\n".join(f"  {line}" for line in lines)
    header = "HloModule jit_f, is_scheduled=true, replica_count=1, num_partitions=8"
    return f"{header}\n\n{before}\nENTRY %main.1 (p.0: f32[100]) -> f32[100] {{\n{body}\n}}\n"


ALL = "replica_groups={{0,1,2,3,4,5,6,7}}"
GATHERED = "(f32[10]{0}, f32[80]{0})"
CIRCLE = "{{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7},{7,0}}"
KINDS = {  # lines of a program -> (bytes, collectives)
    "all-reduce": ([f"%a = f32[100]{{0}} all-reduce(%p.0), channel_id=1, {ALL}, to_apply=%add"], 700, 1),
    "combined": (
        [f"%a = (f32[10]{{0}}, /*index=1*/s8[8,5]{{1,0}}, pred[], bf16[30]) all-reduce(%p, %q, %r, %s), {ALL}"],
        2 * SEVEN_EIGHTHS * (40 + 40 + 1 + 60),
        1,
    ),
    "tiled": ([f"%a = bf16[16,128]{{1,0:T(8,128)(2,1)}} all-reduce(bf16[16,128]{{1,0:T(8,128)}} %p), {ALL}"], 7168, 1),
    "all-gather": ([f"%a = f32[8,10]{{1,0}} all-gather(%p), {ALL}, dimensions={{0}}"], 280, 1),
    "reduce-scatter": ([f"%a = f32[10]{{0}} reduce-scatter(%p), {ALL}, to_apply=%add"], 280, 1),
    "all-to-all": ([f"%a = (f32[1,10]{{1,0}}, f32[1,10]{{1,0}}) all-to-all(%p, %q), {ALL}"], 70, 1),
    "permute": ([f"%a = f32[10]{{0}} collective-permute(%p), source_target_pairs={CIRCLE}"], 40, 1),
    "permute of some": (
        ["%a = f32[10]{0} collective-permute(%p), source_target_pairs={{0,1},{1,0},{2,2}}, use_global_device_ids=true"],
        40 * 2 / 8,
        1,
    ),
    "two": ([f"%{name} = f32[100]{{0}} all-reduce(%p.0), {ALL}" for name in "ab"], 1400, 2),
    "of two": (["%a = f32[10]{0} all-reduce(%p), replica_groups={{0,1},{2,3},{4,5},{6,7}}"], 40, 1),
    "of all": (["%a = f32[100]{0} all-reduce(%p), replica_groups={}, to_apply=%add"], 700, 1),
    "iota": (["%a = f32[10]{0} all-reduce(%p), replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add"], 40, 1),
    "mesh": (["%a = f32[100]{0} all-reduce(%p), replica_groups=mesh['device'=8] {'device'}, to_apply=%add"], 700, 1),
    "mesh axis": (["%a = f32[10]{0} all-reduce(%p), replica_groups=mesh['x'=2,'y'=4] {'x'}, to_apply=%add"], 40, 1),
    "mesh in another order": (
        [
            "%a = f32[10]{0} all-reduce(%p), replica_groups=mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'x'}, "
            "use_global_device_ids=true"
        ],
        40,
        1,
    ),
    "asynchronous": (
        [
            f"%ar = f32[100]{{0}} all-reduce-start(%p.0), {ALL}, to_apply=%add",
            f"%ag = {GATHERED} all-gather-start(%q), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}, dimensions={{0}}",
            "%cp = (f32[10]{0}, f32[10]{0}, u32[], u32[]) collective-permute-start(%r), source_target_pairs={{0,1}}",
            "%a = f32[100]{0} all-reduce-done(%ar)",
            f"%b = f32[40]{{0}} all-gather-done({GATHERED} %ag)",
            "%c = f32[10]{0} collective-permute-done(%cp)",
        ],
        700 + 120 + 40 / 8,
        3,
    ),
    "words": (
        [
            "%all-reduce.7 = f32[9]{0} add(%all-reduce, %p)",
            '%b = f32[9]{0} copy(%p), metadata={op_name="x all-reduce("}',
        ],
        0,
        0,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_texts(kind):
    lines, num_bytes, count = KINDS[kind]
    found = hlo.traffic(program(*lines))
    assert found.bytes_per_worker == pytest.approx(num_bytes)
    assert sum(found.collectives.values()) == count


BODY = f"%body (s: f32[100]) -> f32[100] {{\n  ROOT %a = f32[100]{{0}} all-reduce(%s), {ALL}\n}}\n"
LOOP = "%w = f32[100]{0} while(%p), condition=%cond, body=%body"


def test_loops_count_as_often_as_they_turn():
    text = program(LOOP + ', metadata={op_name="x"}, backend_config={"known_trip_count":{"n":"3"}}', before=BODY)
    assert hlo.traffic(text) == (2100, {"all-reduce": 3})
    inner = BODY.replace("%body (", "%inner (")
    outer = "%body (s: f32[100]) -> f32[100] {\n  %x = f32[100]{0} call(%s), to_apply=%inner\n}\n"
    text = program(LOOP + ', backend_config={"known_trip_count":{"n":"2"}}', before=inner + outer)
    assert hlo.traffic(text) == (1400, {"all-reduce": 2})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (program(LOOP, before=BODY), "number of iterations"),
        (program("%a = f32[10]{0} ragged-all-to-all(%p), replica_groups={{0,1}}"), "unknown kind"),
        (program("%a = f32[10]{0} all-reduce(%p), replica_groups=@somewhere, to_apply=%add"), "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        hlo.traffic(text)


def leaves(num_floats=4096):
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in [(num_floats,), (40, 8), (5,), ()]]


NEEDED = {  # options without a default
    "backup_workers": "num_required=6",
    "deadline": "deadline_seconds=4.5",
    "elastic_averaging": "every_steps=2",
    "local_sgd": "every_steps=2",
    "quorum": "num_required=6",
    "stale": "delay_steps=2",
}
LABELS = [f"{c.label}:{NEEDED[c.label]}" if c.label in NEEDED else c.label for c in defaults()]


def moved_by(candidate, shapes, *, num_devices):
    """What the compiled program of a reducer sends."""
    program = compile_reducer(candidate, shapes, Layout.of(8, num_devices=num_devices))
    return hlo.traffic(program.call.as_text())


@pytest.mark.parametrize("label", LABELS)
def test_compiled_bytes_are_those_that_are_traced(label):
    candidate, seconds = parse(label), jnp.arange(1.0, 9.0)
    make = candidate.make(axis_name="worker")
    traced = reducers.traffic(make, leaves(), axis_sizes={"worker": 8}, arrival_seconds=seconds)
    compiled = moved_by(candidate, leaves(), num_devices=8)
    assert compiled.bytes_per_worker == pytest.approx(traced.bytes_per_worker)
    assert 1 <= sum(compiled.collectives.values()) <= sum(traced.collectives.values())


@pytest.mark.parametrize("num_devices", [1, 4])
def test_lanes_send_nothing(num_devices):
    moved = moved_by(parse("mean"), leaves(), num_devices=num_devices)
    size = sum(leaf.size for leaf in leaves())
    assert moved.bytes_per_worker == pytest.approx(2 * 4 * size * (num_devices - 1) / num_devices)
