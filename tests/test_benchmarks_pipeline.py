"""The benchmark of the image pipeline as a command, on next to nothing; no test looks at a time."""

import json

import pytest

from benchmarks import pipeline

SMALL = ["--images=6", "--width=48", "--height=40", "--image_size=16"]


@pytest.mark.slow
def test_measures_every_way_in_both_modes(tmp_path, capsys):
    target = tmp_path / "found.json"
    assert pipeline.main(["pipeline", *SMALL, "--processes=1", "--repeats=2", f"--json={target}"]) == 0
    out, err = capsys.readouterr()
    assert "6 images of 48 x 40" in out and "rounds: 2" in out and "round 2 of 2" in err
    assert out.count("one thread") == 2 and "not measured" not in out
    found = json.loads(target.read_text())
    assert [(row["mode"], row["processes"]) for row in found["rows"]] == [
        ("training", 0),
        ("training", 1),
        ("evaluation", 0),
        ("evaluation", 1),
    ]
    for row in found["rows"]:
        assert len(row["seconds"]) == 2 and min(row["seconds"]) > 0
        assert len(row["reading"]) == len(row["decoding"]) == (0 if row["processes"] else 2)
    assert found["images"] == 6 and found["mean_bytes"] > 500


def test_ctrl_c_ends_with_what_was_measured(monkeypatch, capsys):
    gathered = []

    def interrupted(examples, index, batch_index):
        gathered.append(batch_index)
        if len(gathered) == 3:  # the second of two ways in the first round that counts is the fourth
            raise KeyboardInterrupt

    monkeypatch.setattr(pipeline.Images, "gather", interrupted)
    monkeypatch.setattr(pipeline, "MODES", ("training",))
    assert pipeline.main(["pipeline", *SMALL, "--processes=1"]) == 130
    out, err = capsys.readouterr()
    assert out.count("not measured") == 2 and "interrupted" in err


def test_the_pictures_are_like_photographs(tmp_path):
    size = pipeline.write_images(tmp_path / "one", count=2, width=500, height=375)
    assert 50_000 < size < 150_000  # those of ImageNet have 110 kB on average
    assert (pipeline.smooth_noise(0, width=20, height=10) != pipeline.smooth_noise(1, width=20, height=10)).any()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--processes=0", "processes='0': must be counts in [1, 1024]"),
        ("--processes=many", "processes='many'"),
        ("--processes=1025", "processes='1025': must be counts"),
        ("--repeats=0", "repeats"),
        ("--json=/no/such/folder/x", "must be a file in a folder that exists"),
        ("--speed=1", "speed"),
        ("words", "'words': not a flag"),
    ],
)
def test_refused(flag, message, capsys):
    assert pipeline.main(["pipeline", flag]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1 and err.startswith("benchmarks.pipeline: ")
