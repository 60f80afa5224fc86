"""The reader of optimized programs: on short programs whose numbers are known, and against what JAX and XLA count."""

import jax
import pytest
from jax import lax
from jax import numpy as jnp

import reducers
from benchmarks.compiled import NEEDED
from benchmarks.kit.candidates import defaults, parse
from benchmarks.kit.reducer_times import compile_reducer
from compilers import estimate, program
from parallel import Layout
from reducers import targets

# ---- collectives -------------------------------------------------------------------------------------------------

SEVEN_EIGHTHS = 7 / 8


def module(*lines: str, before: str = "") -> str:
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
    "permute of none": (["%a = f32[10]{0} collective-permute(%p), source_target_pairs={}"], 0, 1),
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
    found = program.read(module(*lines)).traffic()
    assert found.bytes_per_worker == pytest.approx(num_bytes)
    assert sum(found.collectives.values()) == count


BODY = f"%body (s: f32[100]) -> f32[100] {{\n  ROOT %a = f32[100]{{0}} all-reduce(%s), {ALL}\n}}\n"
LOOP = "%w = f32[100]{0} while(%p), condition=%cond, body=%body"


@pytest.mark.parametrize(
    ("groups", "hosts", "speed"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 2, "link"),
        ("[2,4]<=[8]", 2, "link"),
        ("mesh['node'=2,'part'=4] {'part'}", 2, "link"),
        ("{}", 1, "link"),
        ("{}", 2, "network"),
        ("[4,2]<=[2,4]T(1,0)", 2, "network"),
        ("mesh['node'=2,'part'=4] {'node'}", 2, "network"),
        ("{{0,1},{2,3},{4,5},{6,7}}", 8, "network"),
    ],
)
def test_what_stays_in_a_host_goes_over_its_links(groups, hosts, speed):
    kind = targets.find("h100").kind
    parsed = program.read(module(f"%a = f32[100]{{0}} all-reduce(%p.0), replica_groups={groups}, to_apply=%add"))
    seconds = estimate.link_seconds(parsed, kind, num_hosts=hosts)
    assert seconds == pytest.approx(parsed.traffic().bytes_per_worker / getattr(kind, speed))


def test_a_part_that_a_fusion_cuts_out_of_a_sum_is_a_reduce_scatter():
    """So a TPU does it; where the sum is read otherwise too, or cut outside of the fusion, it is a sum."""

    def lines(cut: str) -> str:
        sums = ["%p = f32[100]{0} parameter(0)", "%i = s32[] parameter(1)", "%z = f32[104]{0} pad(%p, %c)"]
        sums += [f"%a = f32[104]{{0}} all-reduce(%z), {ALL}, to_apply=%add", "%b = f32[104]{0} bitcast(%a)"]
        body = "\n".join(f"  {line}" for line in [*sums, f"ROOT %r = {cut}"])
        before = f"%fused (p: f32[100], i: s32[]) -> f32[13] {{\n{body}\n}}\n"
        result = cut.split()[0]
        return module(f"ROOT %f = {result} fusion(%p.0, %j), kind=kCustom, calls=%fused", before=before)

    part = program.read(lines("f32[13]{0} dynamic-slice(%b, %i), dynamic_slice_sizes={13}")).traffic()
    assert part.collectives == {"reduce-scatter": 1}
    assert part.bytes_per_worker == 7 * 4 * 13
    whole = program.read(lines("f32[104]{0} negate(%b)")).traffic()
    assert whole.collectives == {"all-reduce": 1}
    assert whole.bytes_per_worker == 2 * SEVEN_EIGHTHS * 4 * 104


def test_loops_count_as_often_as_they_turn():
    text = module(LOOP + ', metadata={op_name="x"}, backend_config={"known_trip_count":{"n":"3"}}', before=BODY)
    assert program.read(text).traffic() == (2100, {"all-reduce": 3})
    inner = BODY.replace("%body (", "%inner (")
    outer = "%body (s: f32[100]) -> f32[100] {\n  %x = f32[100]{0} call(%s), to_apply=%inner\n}\n"
    text = module(LOOP + ', backend_config={"known_trip_count":{"n":"2"}}', before=inner + outer)
    assert program.read(text).traffic() == (1400, {"all-reduce": 2})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (module(LOOP, before=BODY), "number of iterations"),
        (module("%a = f32[10]{0} ragged-all-to-all(%p), replica_groups={{0,1}}"), "unknown kind"),
        (module("%a = f32[10]{0} collective-permute(%p), channel_id=1"), "source_target_pairs of .*: cannot be read"),
        (module("%a = f32[10]{0} all-reduce(%p), replica_groups=@somewhere, to_apply=%add"), "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        program.read(text).traffic()


def leaves(num_floats=4096):
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in [(num_floats,), (40, 8), (5,), ()]]


LABELS = [f"{c.label}:{NEEDED[c.label]}" if c.label in NEEDED else c.label for c in defaults()]


def moved_by(candidate, shapes, *, num_devices):
    """What the compiled program of a reducer sends."""
    compiled = compile_reducer(candidate, shapes, Layout.of(8, num_devices=num_devices))
    return program.read(compiled.call.as_text()).traffic()


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


# ---- kernels -----------------------------------------------------------------------------------------------------


def computation(name: str, *lines: str) -> str:
    """A computation; the reader takes a value's type from its instruction, not from the header."""
    return "\n".join([f"%{name} (p: f32[]) -> f32[] {{", *(f"  {line}" for line in lines), "}", "", ""])


def kernels(*lines: str, before: str = "") -> dict[str, tuple]:
    """Name -> times, bytes read, bytes written."""
    return {k.name: (k.times, k.read, k.written) for k in program.read(module(*lines, before=before)).kernels()}


P = "%p = f32[100]{0} parameter(0)"


def test_a_kernel_reads_its_operands_and_writes_its_results():
    found = kernels(
        P,
        "%c = f32[] constant(1)",
        "%i = s32[7]{0} iota(), iota_dimension=0",
        "%b = f32[10,10]{1,0} bitcast(%p)",
        "%a = bf16[100]{0} convert(%p)",
        '%m = (f32[100]{0}, pred[3]{0}) custom-call(%p, %a, %c), custom_call_target="mine"',
        '%twice = f32[3]{0} custom-call(%a, %a), custom_call_target="mine"',
        "%g = f32[100]{0} get-tuple-element(%m), index=0",
        "ROOT %t = (f32[100]{0}, f32[10,10]{1,0}) tuple(%g, %b)",
    )
    assert found == {"a": (1, 400, 200), "m": (1, 400 + 200 + 4, 400 + 3), "twice": (1, 200, 12)}


SLICES = {  # a line -> bytes read and written
    "slice": ("%a = f32[10]{0} slice(%p), slice={[0:10]}", 40, 40),
    "dynamic-slice": ("%a = f32[10]{0} dynamic-slice(%p, %i), dynamic_slice_sizes={10}", 40, 40),
    "gather": ("%a = f32[20]{0} gather(%p, %j), offset_dims={1}", 80, 80),
    "dynamic-update-slice": ("%a = f32[100]{0} dynamic-update-slice(%p, %q, %i)", 12, 12),
    "whole": ("%a = f32[100]{0} negate(%p)", 400, 400),
}


@pytest.mark.parametrize("line", SLICES)
def test_a_slice_costs_its_own_bytes(line):
    text, read, written = SLICES[line]
    given = P, "%q = f32[3]{0} parameter(1)", "%i = s32[] parameter(2)", "%j = s32[5]{0} parameter(3)"
    assert kernels(*given, text)["a"] == (1, read, written)


P0, P1, P2 = "%p0 = f32[100]{0} parameter(0)", "%p1 = f32[10]{0} parameter(1)", "%p2 = s32[] parameter(2)"
SLICED = "dynamic-slice(%p0, %p2), dynamic_slice_sizes={10}"
INNER = computation(
    "inner", P0.replace("p0", "x"), "%n = s32[] parameter(1)", "ROOT %y = f32[10]{0} dynamic-slice(%x, %n)"
)
FORWARD = computation("forward", P0.replace("p0", "x"), "ROOT %y = f32[100]{0} bitcast(%x)")
FUSED = {  # lines of a fusion of p0 (100 floats), p1 (10) and p2 (one) -> its result, bytes of p0 read, and written
    "whole": (["ROOT %r = f32[100]{0} negate(%p0)"], "f32[100]{0}", 400, 400),
    "sliced": ([f"%s = f32[10]{{0}} {SLICED}", "ROOT %r = f32[10]{0} add(%s, %p1)"], "f32[10]{0}", 40, 40),
    "sliced twice": (
        [
            f"%s = f32[10]{{0}} {SLICED}",
            "%t = f32[5]{0} slice(%p0), slice={[0:5]}",
            "ROOT %r = (f32[10]{0}, f32[5]{0}) tuple(%s, %t)",
        ],
        "(f32[10]{0}, f32[5]{0})",
        60,
        60,
    ),
    "sliced behind a bitcast": (
        ["%b = f32[10,10]{1,0} bitcast(%p0)", "ROOT %r = f32[1,10]{1,0} dynamic-slice(%b, %p2, %p2)"],
        "f32[1,10]{1,0}",
        40,
        40,
    ),
    "sliced in a fusion inside": (
        ["%s = f32[10]{0} fusion(%p0, %p2), kind=kLoop, calls=%inner", "ROOT %r = f32[10]{0} add(%s, %p1)"],
        "f32[10]{0}",
        40,
        40,
    ),
    "forwarded by a fusion inside": (
        ["%b = f32[100]{0} fusion(%p0), kind=kLoop, calls=%forward", "ROOT %r = f32[100]{0} negate(%b)"],
        "f32[100]{0}",
        400,
        400,
    ),
    "sliced, and read as a whole": (
        [f"%s = f32[10]{{0}} {SLICED}", "%n = f32[100]{0} negate(%p0)", "ROOT %r = f32[90]{0} custom-call(%n, %s)"],
        "f32[90]{0}",
        400,
        360,
    ),
    "slices that overlap": (
        [
            *(f"%s{k} = f32[90]{{0}} slice(%p0), slice={{[{k}:{k + 90}]}}" for k in (0, 9)),
            "ROOT %r = f32[90]{0} add(%s0, %s9)",
        ],
        "f32[90]{0}",
        400,
        360,
    ),
    "an index": (["ROOT %r = f32[7]{0} gather(%p9, %p0)"], "f32[7]{0}", 400, 28),
    "replaced": (["ROOT %r = f32[100]{0} dynamic-update-slice(%p0, %p1, %p2)"], "f32[100]{0}", 0, 40),
    "replaced behind bitcasts": (
        [
            "%b = f32[10,10]{1,0} bitcast(%p0)",
            "%c = f32[1,10]{1,0} bitcast(%p1)",
            "%u = f32[10,10]{1,0} dynamic-update-slice(%b, %c, %p2, %p2)",
            "ROOT %r = f32[100]{0} bitcast(%u)",
        ],
        "f32[100]{0}",
        0,
        40,
    ),
    "read and replaced": (
        [
            f"%s = f32[10]{{0}} {SLICED}",
            "%a = f32[10]{0} add(%s, %p1)",
            "ROOT %r = f32[100]{0} dynamic-update-slice(%p0, %a, %p2)",
        ],
        "f32[100]{0}",
        40,
        40,
    ),
    "replaced twice": (
        [
            "%u = f32[100]{0} dynamic-update-slice(%p0, %p1, %p2)",
            "%h = f32[5]{0} slice(%p1), slice={[0:5]}",
            "ROOT %r = f32[100]{0} dynamic-update-slice(%u, %h, %p2)",
        ],
        "f32[100]{0}",
        0,
        60,
    ),
    "replaced, beside another result": (
        [
            "%u = f32[100]{0} dynamic-update-slice(%p0, %p1, %p2)",
            "%n = f32[10]{0} negate(%p1)",
            "ROOT %r = (f32[100]{0}, f32[10]{0}) tuple(%u, %n)",
        ],
        "(f32[100]{0}, f32[10]{0})",
        0,
        80,
    ),
    "a slice of what is new": (
        ["%n = f32[100]{0} negate(%p0)", "ROOT %r = f32[100]{0} dynamic-update-slice(%n, %p1, %p2)"],
        "f32[100]{0}",
        400,
        400,
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_a_fusion_reads_and_writes_slices(name):
    lines, result, read, written = FUSED[name]
    before = INNER + FORWARD + computation("fused", P0, P1, P2, *lines)
    given = P, "%q = f32[10]{0} parameter(1)", "%i = s32[] parameter(2)"
    call = f"ROOT %a = {result} fusion(%p, %q, %i), kind=kLoop, calls=%fused"
    uses = {word: any(word in line for line in lines) for word in ("%p1", "%p2")}
    expected = read + 40 * uses["%p1"] + 4 * uses["%p2"]
    assert kernels(*given, call, before=before)["a"] == (1, expected, written)


STEP = computation("body", P, "%n = f32[100]{0} negate(%p)", "ROOT %m = f32[100]{0} negate(%n)")


@pytest.mark.parametrize(("config", "times"), [('backend_config={"known_trip_count":{"n":"5"}}', 5), ("", 1)])
def test_the_kernels_of_a_loop_count_once_per_iteration(config, times):
    loop = f"ROOT %w = f32[100]{{0}} while(%p), condition=%c, body=%body, {config}"
    assert kernels(P, loop, before=STEP) == {"n": (times, 400, 400), "m": (times, 400, 400)}
    assert program.read(module(P, loop, before=STEP)).loops_of_unknown_length() == (times == 1)


def test_loops_in_loops_multiply():
    outer = computation(
        "outer", P, 'ROOT %v = f32[100]{0} while(%p), condition=%c, body=%body, x={"known_trip_count":{"n":"3"}}'
    )
    loop = 'ROOT %w = f32[100]{0} while(%p), condition=%c, body=%outer, x={"known_trip_count":{"n":"5"}}'
    assert kernels(P, loop, before=STEP + outer) == {"n": (15, 400, 400), "m": (15, 400, 400)}


def counting(*, start="constant(0)", end="constant(12)", direction="LT", add="add(%k, %one)", step=1) -> str:
    """A loop that a compiler of TPUs leaves without the number of its iterations."""
    state = "(f32[], s32[]) parameter(0)"
    before = computation(
        "cond",
        f"%s = {state}",
        "%k = s32[] get-tuple-element(%s), index=1",
        "%end = s32[] constant(12)" if end is None else f"%end = s32[] {end}",
        f"ROOT %less = pred[] compare(%k, %end), direction={direction}",
    ) + computation(
        "body",
        f"%s = {state}",
        "%x = f32[] get-tuple-element(%s), index=0",
        "%j = s32[] get-tuple-element(%s), index=1",
        "%k = s32[]{:S(6)} copy(%j)",
        f"%one = s32[] constant({step})",
        "%y = f32[] negate(%x)",
        f"%next = s32[] {add}",
        "ROOT %t = (f32[], s32[]) tuple(%y, %next)",
    )
    return module(
        "%x = f32[] parameter(0)",
        f"%zero = s32[] {start}",
        "%copied = s32[] copy(%zero)",
        "%t = (f32[], s32[]) tuple(%x, %copied)",
        "ROOT %w = (f32[], s32[]) while(%t), condition=%cond, body=%body",
        before=before,
    )


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ({}, 12),
        ({"start": "constant(2)"}, 10),
        ({"start": "constant(-3)"}, 15),
        ({"step": 5}, 3),
        ({"add": "add(%one, %k)"}, 12),
    ],
)
def test_a_loop_is_as_long_as_its_counter_says(changes, times):
    found = program.read(counting(**changes))
    assert {k.name: k.times for k in found.kernels()}["y"] == times
    assert found.loops_of_unknown_length() == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"start": "parameter(1)"},
        {"end": "get-tuple-element(%s), index=1"},
        {"direction": "NE"},
        {"add": "multiply(%k, %one)"},
        {"add": "add(%one, %one)"},
        {"add": "add(%k, %k)"},
        {"step": 0},
    ],
    ids=str,
)
def test_a_counter_that_is_not_understood_is_said(changes):
    found = program.read(counting(**changes))
    assert {k.name: k.times for k in found.kernels()}["y"] == 1
    assert found.loops_of_unknown_length() == 1


@pytest.mark.parametrize("steps", [1, 3])
def test_the_loops_of_a_scan_are_known(steps):
    def f(x):
        return lax.scan(lambda carry, w: (jnp.tanh(carry @ w), carry.sum()), x, jnp.ones((steps + 1, 40, 40)))

    found = program.read(jax.jit(f).lower(jnp.ones((40, 40))).compile().as_text())
    assert found.loops_of_unknown_length() == 0
    assert sum(k.times * k.flops for k in found.kernels()) == 2 * 40**3 * (steps + 1)


@pytest.mark.parametrize(
    "branches",
    ["branch_computations={%cheap, %dear}", "true_computation=%dear, false_computation=%cheap"],
)
def test_of_a_conditional_the_dearest_branch_counts(branches):
    before = computation("cheap", P, "ROOT %n = f32[100]{0} negate(%p)")
    before += computation("dear", P, "%n1 = f32[100]{0} negate(%p)", "ROOT %n2 = f32[100]{0} negate(%n1)")
    lines = "%i = s32[] parameter(1)", f"ROOT %c = f32[100]{{0}} conditional(%i, %p, %p), {branches}"
    assert kernels(P, *lines, before=before) == {"n1": (1, 400, 400), "n2": (1, 400, 400)}


def test_calls_and_what_runs_beside_are_kernels():
    before = computation("called", P, "ROOT %n = f32[100]{0} negate(%p)")
    before += computation("beside", P, "ROOT %m = f32[100]{0} negate(%p)")
    found = kernels(
        P,
        "%a = f32[100]{0} call(%p), to_apply=%called",
        "%b = ((f32[100]{0}), f32[100]{0}, s32[]) async-start(%p), calls=%beside",
        "%c = f32[100]{0} async-done(%b)",
        "%d = (f32[100]{0}, f32[100]{0}, u32[]) copy-start(%p)",
        "%e = f32[100]{0} copy-done(%d)",
        f"%f = f32[100]{{0}} all-reduce-start(%p), {ALL}, to_apply=%add",
        "%g = f32[100]{0} all-reduce-done(%f)",
        f"%h = (f32[100]{{0}}, f32[800]{{0}}) all-gather-start(%p), {ALL}, dimensions={{0}}",
        "ROOT %i = f32[800]{0} all-gather-done(%h)",
        before=before,
    )
    once = (1, 400, 400)
    assert found == {"n": once, "m": once, "d": (1, 400, 404), "f": once, "h": (1, 400, 3200)}


def test_a_tpus_collective_beside_kernels_is_one():
    """libtpu names it in each fusion that it goes on in; the first one begins it, and moves its bytes."""
    chained = f'all-gather(%p), {ALL}, dimensions={{0}}, frontend_attributes={{chain_id="0"}}'
    gather = f"%g = f32[800]{{0}} {chained}"
    state = "(f32[100]{0}, f32[800]{0})"
    begin, end = (f'custom_call_target="AsyncCollective{name}"' for name in ("Start", "Done"))
    q, r = "%q = f32[800]{0} parameter(1)", "%r = f32[50]{0} parameter(2)"
    before = computation("begin", P, gather, f"ROOT %s = {state} custom-call(%g), {begin}")
    before += computation(
        "beside",
        *(P, q, r, gather, "%n = f32[50]{0} negate(%r)"),
        "ROOT %t = (f32[50]{0}, f32[100]{0}, f32[800]{0}) tuple(%n, %p, %g)",
    )
    before += computation("end", P, q, gather, f"ROOT %d = f32[800]{{0}} custom-call(%p, %q, %g), {end}")
    lines = [P, "%x = f32[50]{0} parameter(1)", f"%a = {state} fusion(%p), kind=kCustom, calls=%begin"]
    lines += [f"%a{i} = f32[{n}]{{0}} get-tuple-element(%a), index={i}" for i, n in enumerate((100, 800))]
    lines += ["%b = (f32[50]{0}, f32[100]{0}, f32[800]{0}) fusion(%a0, %a1, %x), kind=kOutput, calls=%beside"]
    lines += [f"%b{i} = f32[{n}]{{0}} get-tuple-element(%b), index={i}" for i, n in ((1, 100), (2, 800))]
    text = module(*lines, "ROOT %c = f32[800]{0} fusion(%b1, %b2), kind=kCustom, calls=%end", before=before)
    found = program.read(text)
    assert found.traffic() == (7 * 400, {"all-gather": 1})
    assert found.longest_chain() == 1
    moved = {kernel.name: (kernel.read, kernel.written) for kernel in found.kernels()}
    assert moved == {"a": (400, 3600), "b": (200, 200), "c": (0, 0)}


# ---- tiles and memory of TPUs ------------------------------------------------------------------------------------

PADDED = {  # type -> bytes in memory
    "f32[16,256]{1,0:T(8,128)}": 4 * 16 * 256,
    "f32[3,5]{1,0:T(8,128)}": 4 * 8 * 128,
    "f32[5,300]{0,1:T(8,128)}": 4 * 128 * 304,
    "bf16[7,9,130]{2,1,0:T(8,128)(2,1)}": 2 * 7 * 16 * 256,
    "bf16[7,9,130]{2,0,1:T(4,128)(2,1)}": 2 * 8 * 9 * 256,
    "f32[100]{0:T(128)}": 4 * 128,
    "s8[1000]{0:T(1024)}": 1024,
    "f32[]{:T(128)}": 4,
    "f32[16,256]{1,0:T(8,128)S(1)}": 0,
    "s32[]{:T(128)S(6)}": 0,
    "(f32[3,5]{1,0:T(8,128)}, f32[3,5]{1,0:T(8,128)S(1)})": 4 * 8 * 128,
}


@pytest.mark.parametrize("result", PADDED)
def test_a_tpu_pads_arrays_to_tiles_and_keeps_some_on_the_chip(result):
    tiled = "%p = f32[1024]{0:T(1024)} parameter(0)"
    assert kernels(tiled, f'ROOT %a = {result} custom-call(%p), custom_call_target="mine"') == {
        "a": (1, 4096, PADDED[result])
    }


def test_what_a_tpu_moves_to_the_chip_is_read_once():
    off, on = "f32[8,128]{1,0:T(8,128)}", "f32[8,128]{1,0:T(8,128)S(1)}"
    found = kernels(
        f"%p = {off} parameter(0)",
        f"%a = ({on}, {off}, u32[]{{:S(2)}}) copy-start(%p)",
        f"%b = {on} copy-done(%a)",
        f"%c = {on} negate(%b)",
        f"%d = ({off}, {on}, u32[]{{:S(2)}}) copy-start(%c)",
        f"ROOT %e = {off} copy-done(%d)",
    )
    assert found == {"a": (1, 4096, 0), "c": (1, 0, 0), "d": (1, 0, 4096)}


@pytest.mark.parametrize(("space", "read", "written"), [("", 4096, 4096), ("S(1)", 0, 0)])
def test_a_replaced_slice_on_the_chip_moves_nothing(space, read, written):
    whole, part = f"f32[64,128]{{1,0:T(8,128){space}}}", "f32[8,128]{1,0:T(8,128)}"
    before = computation(
        "fused",
        f"%p0 = {whole} parameter(0)",
        f"%p1 = {part} parameter(1)",
        "%p2 = s32[]{:T(128)S(6)} parameter(2)",
        f"%s = {part} dynamic-slice(%p0, %p2, %p2)",
        f"%t = {part} add(%s, %p1)",
        f"ROOT %r = {whole} dynamic-update-slice(%p0, %t, %p2, %p2)",
    )
    found = kernels(
        f"%p = {whole} parameter(0)",
        f"%q = {part} parameter(1)",
        "%i = s32[]{:T(128)S(6)} parameter(2)",
        f"ROOT %a = {whole} fusion(%p, %q, %i), kind=kLoop, calls=%fused",
        before=before,
    )
    assert found == {"a": (1, read + 4096, written)}


@pytest.mark.parametrize(
    "whole", ["parameter(0)", 'custom-call(), custom_call_target="AllocateBuffer"'], ids=["replaced", "begun"]
)
def test_a_slice_from_the_chip_is_written_alone(whole):
    off, on = "f32[64,128]{1,0:T(8,128)}", "f32[8,128]{1,0:T(8,128)S(1)}"
    before = computation(
        "fused",
        f"%p0 = {off} {whole}",
        f"%p1 = f32[8,128]{{1,0:T(8,128)S(1)}} parameter({int('parameter' in whole)})",
        "%zero = s32[] constant(0)",
        f"ROOT %r = {off} dynamic-update-slice(%p0, %p1, %zero, %zero)",
    )
    operands = "%p, %q" if "parameter" in whole else "%q"
    found = kernels(
        f"%p = {off} parameter(0)",
        f"%q = {on} parameter(1)",
        f"%a = {off} fusion({operands}), kind=kLoop, calls=%fused",
        "%zero = s32[] constant(0)",
        f"ROOT %b = {off} dynamic-update-slice(%a, %q, %zero, %zero)",
        before=before,
    )
    assert found == {"a": (1, 0, 4096), "b": (1, 0, 4096)}


def test_a_slice_that_goes_to_the_chip_is_read_alone():
    off, on = "f32[64,128]{1,0:T(8,128)}", "f32[8,128]{1,0:T(8,128)S(1)}"
    found = kernels(
        f"%p = {off} parameter(0)",
        f"%a = (({off}), {on}, s32[]{{:S(2)}}) slice-start(%p), slice={{[8:16], [0:128]}}",
        f"%b = {on} slice-done(%a)",
        f"ROOT %c = {on} slice(%p), slice={{[0:8], [0:128]}}",
    )
    assert found == {"a": (1, 4096, 0), "c": (1, 4096, 0)}


def test_memory_that_is_filled_later_costs_nothing():
    tiled = "f32[8,128]{1,0:T(8,128)}"
    assert not kernels(f'ROOT %a = {tiled} custom-call(), custom_call_target="AllocateBuffer"')


# ---- products and convolutions -----------------------------------------------------------------------------------

LEFT, RIGHT = "%l = bf16[4,30,70]{2,1,0} parameter(0)", "%r = bf16[4,70,50]{2,1,0} parameter(1)"
OVER = '"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["1"],"lhs_batch_dimensions":["0"]'
PRODUCT = 2 * 4 * 30 * 70 * 50
CONVOLVED = 2 * (8 * 16 * 16 * 64) * (3 * 3 * 32)
IMAGE, FILTER, SEEN = "bf16[8,16,16,32]{3,2,1,0}", "bf16[64,3,3,32]{3,2,1,0}", "bf16[8,16,16,64]{3,2,1,0}"
LABELLED = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f"


def library(result: str, first: str, second: str, target: str, more: str) -> list[str]:
    given = f"%l = {first} parameter(0)", f"%r = {second} parameter(1)"
    return [
        *given,
        f'ROOT %a = ({result}, s8[4194304]{{0}}) custom-call(%l, %r), custom_call_target="{target}", {more}',
    ]


GEMM = f'backend_config={{"gemm_backend_config":{{"dot_dimension_numbers":{{{OVER}}}}}}}'
OPERATIONS = {  # lines -> operations
    "dot": (
        [LEFT, RIGHT, "ROOT %a = f32[4,30,50]{2,1,0} dot(%l, %r), lhs_batch_dims={0}, lhs_contracting_dims={2}"],
        PRODUCT,
    ),
    "dot over two": (
        ["%l = f32[3,5,7]{2,1,0} parameter(0)", "ROOT %a = f32[3,3]{1,0} dot(%l, %l), lhs_contracting_dims={1,2}"],
        2 * 9 * 35,
    ),
    "outer product": (
        ["%l = f32[30]{0} parameter(0)", "ROOT %a = f32[30,30]{1,0} dot(%l, %l), lhs_contracting_dims={}"],
        2 * 900,
    ),
    "of cuBLAS": (
        library("bf16[4,30,50]{2,1,0}", "bf16[4,30,70]{2,1,0}", "bf16[4,70,50]{2,1,0}", "__cublas$gemm", GEMM),
        PRODUCT,
    ),
    "of cuBLAS, with what follows": (
        library("bf16[4,30,50]{2,1,0}", "bf16[4,30,70]{2,1,0}", "bf16[4,70,50]{2,1,0}", "__cublas$lt$matmul", GEMM),
        PRODUCT,
    ),
    "of cuDNN": (library(SEEN, IMAGE, FILTER, "__cudnn$convForward", LABELLED), CONVOLVED),
    "of cuDNN, to the image": (library(IMAGE, SEEN, FILTER, "__cudnn$convBackwardInput", LABELLED), CONVOLVED),
    "of cuDNN, to the kernel": (library(FILTER, IMAGE, SEEN, "__cudnn$convBackwardFilter", LABELLED), CONVOLVED),
    "of a TPU": (
        [
            "%l = bf16[30,70]{1,0} parameter(0)",
            "%r = bf16[70,50]{1,0} parameter(1)",
            "ROOT %a = bf16[30,50]{1,0} convolution(%l, %r), dim_labels=bf_io->bf",
        ],
        2 * 30 * 70 * 50,
    ),
    "of a TPU, with batches as a window": (
        [
            LEFT,
            RIGHT,
            "ROOT %a = bf16[4,30,50]{2,1,0} convolution(%l, %r), window={size=4 stride=3 pad=0_0 lhs_dilate=4}, "
            "dim_labels=0bf_0io->0bf",
        ],
        PRODUCT,
    ),
    "another call": (library(SEEN, IMAGE, FILTER, "mine", LABELLED), 0),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_products(name):
    lines, flops = OPERATIONS[name]
    (found,) = program.read(module(*lines)).kernels()
    assert found.flops == flops


def test_memory_that_a_library_works_in_is_no_result():
    lines, _ = OPERATIONS["of cuBLAS"]
    assert kernels(*lines) == {"a": (1, 2 * 4 * 70 * (30 + 50), 2 * 4 * 30 * 50)}
    assert kernels(*OPERATIONS["another call"][0])["a"][2] == 2 * 8 * 16 * 16 * 64 + 4194304


def test_products_inside_of_fusions_count():
    product = "ROOT %a = f32[4,30,50]{2,1,0} dot(%l, %r), lhs_batch_dims={0}, lhs_contracting_dims={2}"
    before = computation("inner", LEFT, RIGHT, product)
    before += computation(
        "outer", LEFT, RIGHT, "ROOT %a = f32[4,30,50]{2,1,0} fusion(%l, %r), kind=kOutput, calls=%inner"
    )
    lines = LEFT, RIGHT, "ROOT %a = f32[4,30,50]{2,1,0} fusion(%l, %r), kind=kOutput, calls=%outer"
    (found,) = program.read(module(*lines, before=before)).kernels()
    assert found.flops == PRODUCT


CONVOLUTIONS = {  # image, kernel, options
    "one position": ((2, 8, 8, 4), (1, 1, 4, 6), {}),
    "padding": ((2, 8, 8, 4), (3, 3, 4, 6), {}),
    "no padding": ((2, 9, 7, 4), (3, 2, 4, 6), {"padding": "VALID"}),
    "less than no padding": ((2, 9, 9, 4), (3, 3, 4, 6), {"padding": ((-1, -1), (-2, 0))}),
    "strides": ((2, 9, 7, 4), (3, 3, 4, 6), {"window_strides": (2, 3)}),
    "gaps in the kernel": ((2, 19, 17, 4), (3, 3, 4, 6), {"rhs_dilation": (2, 3)}),
    "gaps in the image": ((2, 9, 7, 4), (3, 3, 4, 6), {"padding": ((2, 2), (1, 2)), "lhs_dilation": (2, 3)}),
    "gaps in both": (
        (2, 9, 7, 4),
        (3, 2, 4, 6),
        {"padding": ((4, 4), (3, 3)), "lhs_dilation": (2, 3), "rhs_dilation": (3, 2)},
    ),
    "groups": ((2, 8, 8, 6), (3, 3, 2, 9), {"feature_group_count": 3}),
    "a group for each feature": ((2, 8, 8, 6), (3, 3, 1, 6), {"feature_group_count": 6}),
    "groups of the batch": ((6, 8, 8, 4), (3, 3, 4, 9), {"batch_group_count": 3}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_operations_of_convolutions_are_those_that_xla_counts(name):
    image, kernel, options = CONVOLUTIONS[name]

    def convolve(x, k):
        given = {"window_strides": (1, 1), "padding": "SAME", **options}
        return lax.conv_general_dilated(x, k, dimension_numbers=("NHWC", "HWIO", "NHWC"), **given)

    for function in (convolve, lambda x, k: jax.vjp(convolve, x, k)[1](convolve(x, k))):
        compiled = jax.jit(function).lower(jnp.ones(image), jnp.ones(kernel)).compile()
        found = program.read(compiled.as_text())
        assert sum(k.flops for k in found.kernels()) == pytest.approx(compiled.cost_analysis()["flops"], rel=0.01)


# ---- who asked for a kernel --------------------------------------------------------------------------------------

TABLES = """FileNames
1 "step.py"
2 "/lib/site-packages/jax/lax.py"

FunctionNames
1 "train_step"
2 "<lambda>.<locals>.loss"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=10 end_line=10 column=1 end_column=2}}
2 {{file_name_id=1 function_name_id=2 line=20 end_line=21 column=1 end_column=2}}
3 {{file_name_id=2 function_name_id=2 line=30 end_line=30 column=1 end_column=2}}

StackFrames
1 {{file_location_id=1 {0}}}
2 {{file_location_id=2 {1}}}
3 {{file_location_id=3 {2}}}

"""
PARENTS = {
    "its id": ("", "parent_frame_id=1", "parent_frame_id=2"),
    "its id plus one": [f"parent_frame_id={n}" for n in (1, 2, 3)],
}
FRAMES = (("train_step", "step.py:10"), ("<lambda>.<locals>.loss", "step.py:20"))
LINES = (
    P,
    '%a = f32[100]{0} negate(%p), metadata={op_name="jit(f)/neg" stack_frame_id=2}',
    "%b = f32[100]{0} fusion(%a), kind=kLoop, calls=%fused",
    "ROOT %c = f32[100]{0} negate(%b)",
)


@pytest.mark.parametrize("parents", PARENTS)
def test_a_kernel_names_the_functions_that_asked_for_it(parents):
    inner = P, 'ROOT %n = f32[100]{0} negate(%p), metadata={op_name="jit(f)/inner" stack_frame_id=3}'
    before = TABLES.format(*PARENTS[parents]) + "\n" + computation("fused", *inner)
    found = {k.name: k for k in program.read(module(*LINES, before=before)).kernels()}
    assert found["a"].sources == FRAMES and found["a"].operation == "jit(f)/neg"
    assert found["b"].sources == (*FRAMES, ("<lambda>.<locals>.loss", "/lib/site-packages/jax/lax.py:30"))
    assert found["c"].sources == () and found["c"].operation == ""


def test_a_program_without_tables_has_no_functions():
    before = computation("fused", P, "ROOT %n = f32[100]{0} negate(%p)")
    assert [k.sources for k in program.read(module(*LINES, before=before)).kernels()] == [(), (), ()]


def test_the_functions_of_a_program_that_jax_compiled():
    def innermost(x):
        return jnp.sin(x) @ x

    found = program.read(jax.jit(lambda x: innermost(x)).lower(jnp.ones((70, 70))).compile().as_text())
    functions = {name.rpartition(".")[2] for kernel in found.kernels() for name, _ in kernel.sources}
    assert "innermost" in functions


# ---- chains ------------------------------------------------------------------------------------------------------


def reduced(name: str, operand: str, more: str = "") -> str:
    return f"%{name} = f32[100]{{0}} all-reduce(%{operand}), {ALL}, to_apply=%add{more}"


CHAINS = {  # lines -> the longest chain
    "none": ([P, "%a = f32[100]{0} negate(%p)"], 0),
    "one": ([P, reduced("a", "p")], 1),
    "beside each other": ([P, reduced("a", "p"), reduced("b", "p"), "ROOT %c = f32[100]{0} add(%a, %b)"], 1),
    "one needs the other": ([P, reduced("a", "p"), "%n = f32[100]{0} negate(%a)", reduced("b", "n")], 2),
    "one must wait": ([P, reduced("a", "p"), reduced("b", "p", ", control-predecessors={%a}")], 2),
    "two of three": ([P, reduced("a", "p"), reduced("b", "a"), reduced("c", "p")], 2),
    "begun and ended": (
        [
            P,
            f"%a = f32[100]{{0}} all-reduce-start(%p), {ALL}, to_apply=%add",
            "%b = f32[100]{0} all-reduce-done(%a)",
            f"%c = f32[100]{{0}} all-reduce-start(%b), {ALL}, to_apply=%add",
            "ROOT %d = f32[100]{0} all-reduce-done(%c)",
        ],
        2,
    ),
    "in a loop": (
        [P, reduced("a", "p"), LOOP.replace("while(%p)", "while(%a)") + ', x={"known_trip_count":{"n":"3"}}'],
        4,
    ),
    "in a loop of unknown length": ([P, LOOP], 1),
    "in branches": (
        [
            P,
            "%i = s32[] parameter(1)",
            "ROOT %c = f32[100]{0} conditional(%i, %p, %p), branch_computations={%body, %two}",
        ],
        2,
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_longest_chain_of_collectives(name):
    lines, longest = CHAINS[name]
    before = BODY + computation("two", P, reduced("a", "p"), "ROOT " + reduced("b", "a"))
    assert program.read(module(*lines, before=before)).longest_chain() == longest
