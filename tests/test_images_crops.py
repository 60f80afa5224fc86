"""Crops of one image: pure functions of numbers, whatever kind of file the image is in."""

import itertools
import math

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

from data.decoding import crops
from tests.data_folders import picture
from tests.prepared_sets import file_of

WHOLE = [0.9] + [0.999999, 0.5, 0.0, 0.0] * crops.ATTEMPTS  # not mirrored; nearly the whole area, square


def test_numbers_are_those_of_their_place_alone():
    places = itertools.product((0, 1, 2**64 - 1), (0, 1, 2**40), (0, 1, 255))
    seen = {tuple(crops.uniforms(*place)) for place in places}
    assert len(seen) == 27 and {len(numbers) for numbers in seen} == {crops.NUM_UNIFORMS}
    everything = np.array([crops.uniforms(0, 3, position) for position in range(500)])
    assert everything.min() >= 0 and everything.max() < 1
    assert abs(everything.mean() - 0.5) < 0.01 and abs(everything.std() - math.sqrt(1 / 12)) < 0.01


def test_golden():
    """What published runs rest on: the same under every NumPy, Python and machine."""
    assert crops.uniforms(0, 0, 0)[:3] == [0.34218278474233466, 0.5765144536585864, 0.08665198221933101]
    assert crops.random_box(500, 375, crops.uniforms(42, 7, 3)[1:]) == (202, 104, 465, 315)


@pytest.mark.parametrize("size", [(500, 375), (100, 101), (333, 500)])
def test_boxes_have_the_law_of_the_paper(size):
    boxes = np.array([crops.random_box(*size, crops.uniforms(0, 0, p)[1:]) for p in range(4000)])
    width = boxes[:, 2] - boxes[:, 0]
    height = boxes[:, 3] - boxes[:, 1]
    assert boxes.min() >= 0 and (boxes[:, 2] <= size[0]).all() and (boxes[:, 3] <= size[1]).all()
    share = width * height / (size[0] * size[1])
    shape = np.log(width / height)
    assert share.min() > 0.07 and share.max() <= 1 and np.abs(shape).max() < math.log(4 / 3) + 0.05
    # Where no shape is refused, for want of room, both are uniform.
    small = share < 0.5
    expected = pytest.approx(small.sum() / 4, rel=0.15)
    assert np.histogram(share[small], 4, (0.08, 0.5))[0] == expected
    assert np.histogram(shape[small], 4, (-math.log(4 / 3), math.log(4 / 3)))[0] == expected
    room = size[0] - width
    assert abs((boxes[:, 0] / np.maximum(room, 1))[room > 20].mean() - 0.5) < 0.03


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((1000, 10), (493, 0, 506, 10)),
        ((10, 1000), (0, 493, 10, 506)),
        ((1, 1), (0, 0, 1, 1)),
        ((1, 900), (0, 449, 1, 450)),
    ],
)
def test_narrow_images_give_their_centre(size, box):
    assert crops.random_box(*size, [0.99, 0.5, 0.0, 0.0] * crops.ATTEMPTS) == box


def test_a_crop_is_the_box_mirrored_or_not():
    image = picture(0, width=60, height=60)
    content = file_of(image, "PNG")
    whole = crops.random_resized_crop(content, WHOLE, size=60)
    np.testing.assert_array_equal(whole, np.asarray(image))
    mirrored = crops.random_resized_crop(content, [0.1, *WHOLE[1:]], size=60)
    np.testing.assert_array_equal(mirrored, whole[:, ::-1])
    half = [0.9, (0.25 - 0.08) / 0.92, 0.5, 0.999999, 0.0]  # a quarter of the area, top right
    np.testing.assert_array_equal(crops.random_resized_crop(content, half, size=30), np.asarray(image)[:30, 30:])


@pytest.mark.parametrize(("size", "crop"), [((80, 60), 28), ((60, 80), 28), ((20, 33), 56), ((500, 375), 224)])
def test_centre_crop_is_resize_then_crop(size, crop):
    image = picture(1, width=size[0], height=size[1])
    got = crops.centre_crop(file_of(image, "PNG"), size=crop)
    shorter = round(crop * 256 / 224)
    width, height = (shorter if side == min(size) else int(side * shorter / min(size)) for side in size)
    whole = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    left = round((width - crop) / 2)
    top = round((height - crop) / 2)
    np.testing.assert_array_equal(got, whole[top : top + crop, left : left + crop])
    assert got.shape == (crop, crop, 3) and got.dtype == np.uint8


def test_large_jpegs_are_decoded_small_and_look_the_same(monkeypatch):
    image = picture(2, width=1500, height=1100)
    content = file_of(image, quality=92)
    asked = []

    def crop():
        return [crops.centre_crop(content, size=112), crops.random_resized_crop(content, WHOLE, size=112)]

    real = JpegImagePlugin.JpegImageFile.draft
    monkeypatch.setattr(
        JpegImagePlugin.JpegImageFile, "draft", lambda self, mode, size: asked.append(size) or real(self, mode, size)
    )
    fast = crop()
    assert asked == [(375, 275), (375, 275)]
    asked.clear()
    monkeypatch.setattr(crops, "MIN_REDUCTION", 1000)
    slow = crop()
    assert asked == []
    for a, b in zip(fast, slow, strict=True):
        difference = np.abs(a.astype(int) - b.astype(int))
        assert difference.mean() < 1 and difference.max() <= 6


def kinds() -> dict[str, bytes]:
    colour = picture(3, width=50, height=40)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    palette = colour.convert("P", palette=Image.Palette.ADAPTIVE, colors=256)
    return {
        "JPEG": file_of(colour, quality=95),
        "grey JPEG": file_of(colour.convert("L"), quality=95),
        "CMYK JPEG": file_of(colour.convert("CMYK"), quality=95),
        "EXIF": file_of(colour, quality=95, exif=exif),
        "damaged EXIF": file_of(colour, quality=95, exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\1" * 40),
        "PNG": file_of(colour, "PNG"),
        "palette PNG": file_of(palette, "PNG"),
        "palette PNG with transparency": file_of(palette, "PNG", transparency=bytes(range(256))),
        "transparent PNG": file_of(colour.convert("RGBA"), "PNG"),
        "grey and transparent PNG": file_of(colour.convert("LA"), "PNG"),
        "black and white PNG": file_of(colour.convert("1"), "PNG"),
    }


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # which decoding processes keep to themselves
@pytest.mark.parametrize("kind", kinds())
def test_every_kind_of_file_gives_colours(kind):
    content = kinds()[kind]
    got = crops.centre_crop(content, size=35).astype(int)  # of a 40 x 50 image that keeps its size
    assert got.shape == (35, 35, 3)
    wanted = crops.centre_crop(file_of(picture(3, width=50, height=40), "PNG"), size=35).astype(int)
    grey = "grey" in kind or "black" in kind
    if grey:
        assert (got == got[..., :1]).all()
        wanted = np.repeat((wanted @ [299, 587, 114] / 1000)[..., None], 3, -1)
    if "black" in kind:  # dithered: right on the average alone
        got, wanted = got.mean((0, 1)), wanted.mean((0, 1))
    assert np.abs(got - wanted).mean() < (8 if "palette" in kind else 5)
    assert crops.random_resized_crop(content, WHOLE, size=9).shape == (9, 9, 3)
