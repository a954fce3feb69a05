"""Digits in five domains with the same labels and label shares, synthetic or from the five real data sets.

`digit_domains` needs nothing but scikit-learn and matplotlib; `digits_five` is the literature's MNIST, MNIST-M, SVHN,
SynthDigits and USPS.  A sample's owner is its domain, so that `ByOwner()` gives one client per domain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from .. import rng
from ..support import checks
from ..support.extras import needs
from .arrays import DataNotFound, Source, data_root, from_arrays
from .readers import pack, read

DIGIT_DOMAINS = ("plain", "patches", "inverted", "street", "fonts")
DIGITS_FIVE = ("MNIST", "MNIST-M", "SVHN", "SynthDigits", "USPS")
FACES = ("DejaVuSans*", "DejaVuSerif*", "STIXGeneral*", "cmr10", "cmb10", "cmss10", "cmtt10")
Ten = Annotated[int, checks.Within(10)]
Side = Annotated[int, checks.Within(8)]
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # images and labels, to train on and to test on


@needs("data", "the source 'digit-domains'")
@checks.arguments
def digit_domains(
    train: Ten = 400,
    test: Ten = 150,
    *,
    size: Side = 16,
    seed: checks.CountFromZero = 0,
    train_on: Sequence[str] = DIGIT_DOMAINS,
    test_on: Sequence[str] = DIGIT_DOMAINS,
) -> Source:
    """Five domains of RGB digits `[3, size, size]`, uint8, the same number of images of each label in each.

    plain: scikit-learn's handwritten digits.  patches: |patch - digit| on patches of two photographs, as MNIST-M.
    inverted: dark on bright, blurred.  street: printed digits in colour, with neighbours, uneven light and noise.
    fonts: digits rendered in matplotlib's fonts, with random size, rotation, stroke, colours and position.  Each
    handwritten digit is used once at most, in one domain and either in training or in test.

    train, test: images per domain, multiples of 10 (together at most 580: scikit-learn has 174 of the rarest digit for
    three domains).  train_on, test_on: the domains of the training and of the test set; a domain's images do not depend
    on the other domains.  Owners are numbers in `source.domains`.  The same seed gives the same images on one machine
    (fonts and photographs are drawn by libraries whose versions may differ).

    Raises ValueError for sizes out of range and unknown domains.
    """
    for name, count in (("train", train), ("test", test)):
        if count % 10:
            raise ValueError(f"{name}={count} is no multiple of 10, one share for each digit; use {count // 10 * 10}")
    make = lambda domain: _made(domain, train // 10, test // 10, size, seed)  # noqa: E731
    return _assemble("digit-domains", DIGIT_DOMAINS, make, train_on, test_on)


@needs("data", "the source 'digits-five'")
@checks.arguments
def digits_five(
    train: Ten = 743,
    test: Ten = 1860,
    *,
    size: Side = 28,
    seed: checks.CountFromZero = 0,
    train_on: Sequence[str] = DIGITS_FIVE,
    test_on: Sequence[str] = DIGITS_FIVE,
    root: str | os.PathLike | None = None,
    download: bool = True,
) -> Source:
    """MNIST, MNIST-M, SVHN, SynthDigits and USPS as RGB images `[3, size, size]`, with labels equally frequent to one.

    A domain is read from a pack `mnist.npz`, `mnist-m.npz`, `svhn.npz`, `synthdigits.npz` or `usps.npz` in the data
    root, else with torchvision.  Two domains are made here where they have no pack: MNIST-M from
    other MNIST digits as |patch - digit|, as Ganin et al. (2016) describe, on the images of `BSR/BSDS500/data/images`
    in the data root, else on scikit-learn's two photographs; SynthDigits rendered in matplotlib's fonts.

    train, test: images per domain; FedBN has 743 training images (a tenth of USPS), and 1,860 test images of USPS.
    Raises DataNotFound for domains that can be neither found nor downloaded, ValueError for too few images of a label.
    """
    folder = data_root(root)

    @cache
    def found(domain: str) -> Split | None:
        if domain in ("MNIST-M", "SynthDigits") and not pack(domain.lower(), folder).is_file():
            return None
        source = read(domain.lower(), folder, download)
        return source.train_x, source.train_y, source.test_x, source.test_y

    def make(domain: str) -> Split:
        g, split, parts = rng.numpy_generator(rng.word(seed, DIGITS_FIVE.index(domain)), rng.DATA), found(domain), []
        if not split and domain == "SynthDigits":
            for count in (train, test):
                labels = np.resize(np.arange(10), count)
                parts += [_upright(np.stack([_font(int(c), size, g) for c in labels])), labels]
            return tuple(parts)
        x, y, tx, ty = split or found("MNIST")
        for images, labels, count in ((x, y, train), (tx, ty, test)):
            order = rng.numpy_generator(seed, rng.DATA).permutation(len(labels))
            rows = order[_balanced(labels[order], count, second=not split, domain=domain)]  # of other MNIST digits
            picked = [_resized(images[i], size) for i in rows]
            if not split:
                picked = [_on_patch(image, _photographs(folder), g) for image in picked]
            parts += [_upright(np.stack(picked)), labels[rows]]
        return tuple(parts)

    try:
        return _assemble("digits-five", DIGITS_FIVE, make, train_on, test_on)
    except DataNotFound as e:
        raise DataNotFound(f"digits-five: {e}; or digits-five.npz with all five, owners 0 to 4") from e


@needs("data", "printed_digits")
@checks.arguments
def printed_digits(
    per_class: checks.Count = 5,
    *,
    size: Side = 8,
    ink: Annotated[int, checks.Within(1, 255)] = 16,
    seed: checks.CountFromZero = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Grey digits `[10 per_class, 1, size, size]`, uint8, in matplotlib's fonts, and their labels `[10 per_class]`.

    As in the domain "fonts" of `digit_domains`, but without colours: from 0 to `ink`, as scikit-learn's handwritten
    digits from 0 to 16.  A server can have such data without asking anybody for their handwriting.
    Raises ValueError for per_class < 1, size < 8 and ink outside 1..255.
    """
    labels, g = np.arange(10).repeat(per_class), rng.numpy_generator(seed, rng.DATA)
    return np.rint([[ink * _printed(int(c), size, g)] for c in labels]).astype(np.uint8), labels


def _assemble(
    name: str, known: Sequence[str], make: Callable[[str], Split], train_on: Sequence[str], test_on: Sequence[str]
) -> Source:
    for what, asked in (("train_on", train_on), ("test_on", test_on)):
        if isinstance(asked, str) or not asked or not set(asked) <= set(known) or len(set(asked)) < len(asked):
            raise ValueError(f"{what}={asked!r}; use a list of one or more of {', '.join(known)}")
    halves, made = [], {domain: make(domain) for domain in {**dict.fromkeys(train_on), **dict.fromkeys(test_on)}}
    for asked, first in ((train_on, 0), (test_on, 2)):
        asked = sorted(asked, key=known.index)
        images, labels = ([made[domain][first + k] for domain in asked] for k in (0, 1))
        owner = np.repeat([known.index(domain) for domain in asked], [len(part) for part in labels])
        halves.append((np.concatenate(images), np.concatenate(labels), owner))
    (x, y, owner), (tx, ty, t_owner) = halves
    owners = {"train_owner": owner, "test_owner": t_owner, "domains": tuple(known)}
    return from_arrays(name, x, y, tx, ty, classes=10, **owners)


# --- the domains made here ----------------------------------------------------------------------------------------


@cache
def _made(domain: str, train: int, test: int, size: int, seed: int) -> Split:
    """`train` and `test` images of each digit."""
    number = DIGIT_DOMAINS.index(domain)
    g = rng.numpy_generator(rng.word(seed, number), rng.DATA)
    labels = np.arange(10).repeat(train + test)
    if domain in ("street", "fonts"):
        images = [{"street": _street, "fonts": _font}[domain](int(c), size, g) for c in labels]
    else:
        images = [_resized(digit, size) for digit in _handwritten(seed, number, train + test)]
        if domain == "patches":
            images = [_on_patch(image, _photographs(None), g) for image in images]
        if domain == "inverted":
            images = [_bytes(230 - 0.8 * _blurred(image, size / 16)) for image in images]
    x, held_out = _upright(np.stack(images)), np.tile(np.arange(train + test) >= train, 10)
    return x[~held_out], labels[~held_out], x[held_out], labels[held_out]


def _handwritten(seed: int, number: int, count: int) -> np.ndarray:
    """`count` of scikit-learn's digits for each label, `[10 count, 8, 8]`, different ones for each of the 3 domains."""
    from sklearn.datasets import load_digits

    z, g = load_digits(), rng.numpy_generator(seed, rng.DATA)
    order = g.permutation(len(z.target))
    rows = [order[z.target[order] == c][number * count : (number + 1) * count] for c in range(10)]
    if min(map(len, rows)) < count:
        raise ValueError(f"train + test is {10 * count} images a domain, scikit-learn's digits give 580; use fewer")
    return np.rint(z.images[np.concatenate(rows)] * (255 / 16)).astype(np.uint8)


def _upright(images: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _resized(image: np.ndarray, size: int) -> np.ndarray:
    """A grey or RGB uint8 image as RGB `[size, size, 3]`."""
    from PIL import Image

    if image.ndim == 3 and image.shape[0] in (1, 3):
        image = image.transpose(1, 2, 0)
    image = Image.fromarray(image.squeeze()).convert("RGB")
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))


def _blurred(image: np.ndarray, radius: float) -> np.ndarray:
    from PIL import Image, ImageFilter

    return np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(radius)), float)


def _bytes(image: np.ndarray) -> np.ndarray:
    return np.rint(image).clip(0, 255).astype(np.uint8)


@cache
def _photographs(root: Path | None) -> tuple[np.ndarray, ...]:
    """BSDS500's images where the data root has them, else scikit-learn's two, at half their size."""
    from PIL import Image

    files = sorted(root.glob("BSR/BSDS500/data/images/*/*.jpg")) if root else []
    if files:
        return tuple(np.asarray(Image.open(file).convert("RGB")) for file in files)
    from sklearn.datasets import load_sample_image

    images = [Image.fromarray(load_sample_image(f"{name}.jpg")) for name in ("china", "flower")]
    return tuple(np.asarray(im.reduce(2)) for im in images)


def _on_patch(image: np.ndarray, photographs: Sequence[np.ndarray], g: np.random.Generator) -> np.ndarray:
    """|patch - digit|, with a patch of a photograph."""
    photo = photographs[g.integers(len(photographs))]
    a, b = (g.integers(side - len(image) + 1) for side in photo.shape[:2])
    patch = photo[a : a + len(image), b : b + len(image)]
    return np.abs(patch.astype(int) - image).astype(np.uint8)


@cache
def _faces() -> tuple[Path, ...]:
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return tuple(sorted(file for face in FACES for file in folder.glob(f"{face}.ttf") if "Display" not in file.name))


@cache
def _typeface(file: Path, pixels: int) -> Any:
    from PIL import ImageFont

    return ImageFont.truetype(str(file), pixels, layout_engine=ImageFont.Layout.BASIC)


def _written(text: str, file: Path, size: int, height: float, angle: float, stroke: int, shift: Any) -> np.ndarray:
    """Ink `[size, size]` in 0..1 of a text; height and shift from the centre are in units of the image's side."""
    from PIL import Image, ImageDraw

    side = 4 * size  # drawn larger and reduced, so that edges are smooth
    font = _typeface(file, round(height * side / 0.72))  # digits are about 0.72 of a font's size
    canvas = Image.new("L", (side, side))
    draw = ImageDraw.Draw(canvas)
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font, stroke_width=stroke)
    place = (side * (0.5 + shift[0]) - (left + right) / 2, side * (0.5 + shift[1]) - (top + bottom) / 2)
    draw.text(place, text, fill=255, font=font, stroke_width=stroke)
    canvas = canvas.rotate(angle, Image.Resampling.BILINEAR)
    return np.asarray(canvas.reduce(4), float) / 255


def _two_colours(g: np.random.Generator, distance: float, saturation: float = 1.0) -> np.ndarray:
    """Colours of paper and ink `[2, 3]`, whose brightness (0 to 255) differs by at least `distance`."""
    while True:
        colours = g.uniform(0, 255, (2, 3))
        grey = colours @ (0.299, 0.587, 0.114)
        if abs(grey[0] - grey[1]) >= distance:
            return grey[:, None] + saturation * (colours - grey[:, None])


def _printed(label: int, size: int, g: np.random.Generator) -> np.ndarray:
    """Ink `[size, size]` in 0..1 of a digit with random typeface, height, rotation, stroke and position."""
    file = _faces()[g.integers(len(_faces()))]
    stroke, shift = int(g.integers(3)), g.uniform(-0.1, 0.1, 2)
    return _written(str(label), file, size, g.uniform(0.5, 0.85), g.uniform(-30, 30), stroke, shift)


def _font(label: int, size: int, g: np.random.Generator) -> np.ndarray:
    """A printed digit in random colours."""
    ink = _printed(label, size, g)[..., None]
    paper, colour = _two_colours(g, 60)
    return np.rint(paper + ink * (colour - paper)).astype(np.uint8)


def _street(label: int, size: int, g: np.random.Generator) -> np.ndarray:
    """A house number cropped to one digit: neighbouring digits, two colours, uneven light, blur and noise."""
    sans = [file for file in _faces() if file.name.startswith("DejaVuSans")]
    file, height, angle = sans[g.integers(len(sans))], g.uniform(0.6, 0.85), g.uniform(-8, 8)
    ink = _written(str(label), file, size, height, angle, 0, g.uniform(-0.05, 0.05, 2))
    for side in (-1, 1):
        if g.random() < 0.6:
            shift = (side * g.uniform(0.5, 0.6), g.uniform(-0.05, 0.05))
            ink = np.maximum(ink, _written(str(g.integers(10)), file, size, height, angle, 0, shift))
    paper, colour = _two_colours(g, 50, 0.35)
    image = paper + ink[..., None] * (colour - paper)
    light = g.uniform(-0.3, 0.3, 2) @ np.stack(np.mgrid[-0.5 : 0.5 : size * 1j, -0.5 : 0.5 : size * 1j]).reshape(2, -1)
    image = image * (1 + light.reshape(size, size, 1))
    return _bytes(_blurred(image.clip(0, 255).astype(np.uint8), size / 40) + g.normal(0, 6, image.shape))


# --- the five data sets of the literature -------------------------------------------------------------------------


def _balanced(labels: np.ndarray, count: int, second: bool, domain: str) -> np.ndarray:
    """Rows of `count` images with all ten labels equally often to one: the first such rows, or the second ones."""
    rows = []
    for c, share in enumerate(np.bincount(np.arange(count) % 10, minlength=10)):
        found = np.flatnonzero(labels == c)[share * second : share * (second + 1)]
        if len(found) < share:
            raise ValueError(
                f"{domain} has {(labels == c).sum()} images of digit {c}, too few for {count} images with all digits "
                "equally often; use a smaller train or test"
            )
        rows.append(found)
    return np.sort(np.concatenate(rows))
