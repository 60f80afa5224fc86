"""Crops of one image with Pillow: random-resized and mirrored for training, the centre for evaluation."""

import io
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels of the image as stored

ATTEMPTS = 10  # random boxes to try before taking the centre
SCALE = (0.08, 1.0)  # range of a box's share of the image's area
RATIO = (3 / 4, 4 / 3)  # range of width / height of a box
NUM_UNIFORMS = 1 + 4 * ATTEMPTS  # mirror; area, shape and position of each attempt
STREAM = 1  # a word of the counter; separates these numbers from example orders, which share the key
EVALUATION_MARGIN = 256 / 224  # shorter side after resizing / side of the centre crop
MIN_REDUCTION = 2  # decoding at 1/2, 1/4 or 1/8 keeps at least twice the pixels needed on each side


def uniforms(seed: int, batch_index: int, position: int) -> list[float]:
    """Returns the random numbers of one example, a pure function of the arguments.

    They are words of a Philox generator keyed by (seed, batch_index) whose counter starts at the position.

    Args:
      seed: 0 to 2**64 - 1.
      batch_index: 0 to 2**63 - 1.
      position: Position of the example in its batch.

    Returns:
      41 numbers in [0, 1).

    >>> uniforms(0, 7, 3)[:2] == uniforms(0, 7, 3)[:2] != uniforms(0, 7, 4)[:2]
    True
    """
    key = np.array([seed, batch_index], np.uint64)
    counter = np.array([0, 0, position, STREAM], np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(NUM_UNIFORMS)
    return ((words >> np.uint64(11)) * 2.0**-53).tolist()


def random_box(width: int, height: int, numbers: Sequence[float]) -> Box:
    """Returns a box of random area, shape and position; after 10 misses the largest allowed box at the centre.

    The box's share of the area and the logarithm of its width / height are uniform in ``SCALE`` and ``log(RATIO)``.

    Args:
      width: Width of the image in pixels.
      height: Height of the image in pixels.
      numbers: Four numbers in [0, 1) for each attempt.

    >>> random_box(400, 300, [0.5] * 40)
    (73, 23, 328, 278)

    Reference: Szegedy et al. 2015, Going Deeper with Convolutions, section 6, with the bounds of torchvision's
    RandomResizedCrop, whose order of attempts this follows.
    """
    low = math.log(RATIO[0])
    high = math.log(RATIO[1])
    for attempt in range(ATTEMPTS):
        of_area, of_ratio, of_left, of_top = numbers[4 * attempt : 4 * attempt + 4]
        area = width * height * (SCALE[0] + of_area * (SCALE[1] - SCALE[0]))
        shape = math.exp(low + of_ratio * (high - low))
        w = round(math.sqrt(area * shape))
        h = round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            left = int(of_left * (width - w + 1))
            top = int(of_top * (height - h + 1))
            return left, top, left + w, top + h
    shape = min(max(width / height, RATIO[0]), RATIO[1])
    w = max(1, min(width, round(height * shape)))
    h = max(1, min(height, round(width / shape)))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def random_resized_crop(content: bytes, numbers: Sequence[float], *, size: int) -> np.ndarray:
    """Returns a random box of an image, resized, and mirrored left to right with probability 1/2.

    Args:
      content: Content of an image file.
      numbers: 41 numbers in [0, 1), as from ``uniforms``.
      size: Side of the result in pixels.

    Returns:
      [size, size, 3] uint8.

    Raises:
      Exception: Whatever Pillow raises if the content is not an image.
    """
    image = Image.open(io.BytesIO(content))
    box = random_box(*image.size, numbers[1:])
    pixels = np.asarray(resized(image, box, width=size, height=size))
    return pixels[:, ::-1] if numbers[0] < 0.5 else pixels


def centre_crop(content: bytes, *, size: int) -> np.ndarray:
    """Returns the centre of an image after resizing its shorter side to ``size * 256 / 224``.

    Args:
      content: Content of an image file.
      size: Side of the result in pixels.

    Returns:
      [size, size, 3] uint8.

    Raises:
      Exception: Whatever Pillow raises if the content is not an image.
    """
    image = Image.open(io.BytesIO(content))
    shorter = round(size * EVALUATION_MARGIN)
    factor = shorter / min(image.size)
    width, height = (max(shorter, int(side * factor)) for side in image.size)
    whole = resized(image, (0, 0, *image.size), width=width, height=height)
    left = round((width - size) / 2)
    top = round((height - size) / 2)
    return np.asarray(whole.crop((left, top, left + size, top + size)))


def resized(image: Image.Image, box: Box, *, width: int, height: int) -> Image.Image:
    """Decodes an image and returns a box of it as RGB, resized with an antialiased triangle filter.

    If the box has at least four times the needed pixels on each side, a JPEG is decoded at a half, a quarter or an
    eighth of its size, which saves most of the time for large images. The choice depends on sizes alone. Transparency
    is dropped, and an orientation in EXIF is ignored, as in TensorFlow's decoders.
    """
    stored = image.size
    left, top, right, bottom = box
    needed = min((right - left) / width, (bottom - top) / height) / MIN_REDUCTION
    reduction = next(r for r in (8, 4, 2, 1) if needed >= r or r == 1)
    if reduction > 1 and image.format == "JPEG":
        image.draft(None, (stored[0] // reduction, stored[1] // reduction))
    across = image.size[0] / stored[0]
    down = image.size[1] / stored[1]
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns if this is converted to RGB directly
    scaled_box = (left * across, top * down, right * across, bottom * down)
    return image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR, box=scaled_box)
