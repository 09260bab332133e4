"""Anomalies pasted into frames that hold none, for choosing what finds anomalies without looking at any that it is judged by.

After Fishyscapes Static (Blum et al. 2021, 1904.03215), which pastes foreign objects into held-out frames. Pasted are shapes of fractal
noise (as in DRAEM, Zavrtanik et al. 2021, 2108.07610) filled with textures that no scene has, objects cut out of training frames and
changed until they are none of their class, and a user's own cut-outs. A pixel that is 255 in the labels of a training frame is never
pasted: it may be what the test calls an anomaly.

A network must not find the blending in place of the object. So pasted pixels are matched to those around them in part, edges are
feathered and not counted, and regions of the frame itself go through the very same in their own place: these *shams* are normal.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import read_bytes, reading
from segunc.data.corruptions import fractal, random_of, recompressed
from segunc.data.images import Image, decode
from segunc.data.labels import IGNORE
from segunc.data.layout import list_images
from segunc.data.samples import Labels, SegmentationDataset

SMALLEST, LARGEST = 2e-4, 8e-2
"""Areas of what is pasted, as shares of the frame; their logarithms are uniform."""
FEWEST = 30
"""Pixels of what is pasted, in frames so small that the smallest share is less."""
MOST = 4
"""Anomalies of a frame, at least one, and as many shams where there is room and are regions for them."""
ROOM = 0.85
"""Share of the frame's height and width that an object may fill."""
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


class Pasted(NamedTuple):
    """A frame with anomalies. Outside of ``shams`` the image is the frame's where ``anomaly`` is 0."""

    image: Image
    labels: Labels  # train ids, 255 where something was pasted
    anomaly: Labels  # 0 normal, 1 anomaly, 255 ignored: the feathered border, and what the frame's labels ignore
    shams: Mask  # ``[H, W]``: blended in the same way and normal


class CutOut(NamedTuple):
    """Pixels to be pasted: RGB ``[h, w, 3]`` in 0..255, and which of them belong ``[h, w]`` in 0..1."""

    pixels: Floats
    inside: Floats


class CutPaste:
    """Pastes anomalies: a function of the sources, the seed and a frame's name and content.

    Args:
        sources: training frames that objects and patches are cut out of; none of the frames that are pasted into.
        objects: a folder of cut-out objects, PNG with an alpha channel, that are pasted, too.

    Raises:
        InputError: the folder holds no image, or one that is no cut-out, or no source holds an object.
    """

    def __init__(self, sources: SegmentationDataset, objects: str | Path | None = None, seed: int = 0) -> None:
        self.sources, self.seed = sources, seed
        self.files = [] if objects is None else list_images(Path(objects))
        for path in self.files:
            read_cut_out(path)
        if not any(_regions(sources.read(index)[1]) for index in range(len(sources))):
            given = f"{len(sources)} training frames without an object to cut out"
            expected = f"a region of one class that fills {SMALLEST:.2%} to {LARGEST:.0%} of its frame"
            raise InputError(given, expected, "choose other data, or select.anomalies none")
        self.kinds = [self._texture, self._object, *([self._file] if self.files else [])]

    def __call__(self, image: Image, labels: Labels, name: str) -> Pasted:
        """``image`` RGB uint8 ``[H, W, 3]`` and ``labels`` train ids uint8 ``[H, W]`` of the frame ``name`` with anomalies."""
        random = random_of(f"cut-paste\n{self.seed}\n{name}")
        made, taken, shams = image.copy(), np.zeros(labels.shape, bool), np.zeros(labels.shape, bool)
        anomaly = np.where(labels == IGNORE, labels, np.zeros_like(labels))
        sizes = [_size(random) for _ in range(random.integers(1, MOST + 1))]
        for size in sizes:
            area = max(round(labels.size * size), FEWEST)
            cut = self.kinds[random.integers(len(self.kinds))](random, area, image)
            if _depth(cut.inside > 0.5).max() < 2:  # so thin that nothing is left within its border
                cut = self._texture(random, area, image)
            if (place := _place(cut.inside > 0.5, taken, size, random)) is not None:
                alpha = _blend(made, cut, place, random.uniform(0.1, 0.6), random)
                anomaly[alpha > 0] = IGNORE
                anomaly[alpha == 1] = 1
                taken |= alpha > 0
        regions = _regions(labels)
        for size in sizes:
            if own := [one for one in regions if not (taken[_at(*one)] & one[2]).any() and _depth(one[2]).max() >= 2]:
                top, left, part = min(own, key=lambda one: abs(np.log(one[2].sum() / (size * labels.size))))
                shift = _floats([[1, 0, random.uniform(-0.5, 0.5)], [0, 1, random.uniform(-0.5, 0.5)]])
                shifted = cv2.warpAffine(image, shift, image.shape[1::-1], borderMode=cv2.BORDER_REPLICATE)
                cut = CutOut(_floats(shifted[_at(top, left, part)]), _floats(part))
                alpha = _blend(made, cut, (top, left), random.uniform(-0.25, 0.25), random)
                taken |= alpha > 0
                shams |= alpha > 0
        return Pasted(made, np.where(anomaly != 0, np.uint8(IGNORE), labels), anomaly, shams)

    def _source(self, index: int, frame: Image) -> tuple[Floats, Labels]:
        """A training frame in the light of the frame that is pasted into, 0..255, and its train ids."""
        image, labels = self.sources.read(index)
        known = labels != IGNORE
        light = frame.mean() / max(image[known].mean(), 1.0) if known.any() else 1.0
        return np.clip(_floats(image) * float(light), 0, 255), labels

    def _object(self, random: np.random.Generator, area: int, frame: Image) -> CutOut:
        """A region of one class, in other colours and turned by at least a right angle's two thirds."""
        regions: list[tuple[int, int, Mask]] = []
        while not regions:
            image, labels = self._source(int(random.integers(len(self.sources))), frame)
            regions = _regions(labels)
        # Small regions would be enlarged into something blurred; flat ones are a stain on the road and no object.
        large = [one for one in regions if one[2].sum() >= area / 2] or regions[-1:]
        some = [large[i] for i in random.integers(len(large), size=2)]
        top, left, inside = max(some, key=lambda one: image[_at(*one)][one[2]].std())
        cut = CutOut(_recoloured(image[_at(top, left, inside)], random), _floats(inside))
        return _scaled(cut, area, frame.shape, random.uniform(60, 300), random.uniform(0.8, 1.25))

    def _texture(self, random: np.random.Generator, area: int, frame: Image) -> CutOut:
        """A shape of noise, in a texture of noise, in stripes, or in a changed patch of a frame, lit from above."""
        inside = _shape_of_noise(2 * np.sqrt(area), random)
        side, kind = len(inside), random.integers(3)
        patch = self._patch(side, frame, random) if kind == 2 else None
        if patch is None:
            noise = fractal(side, random.uniform(1.1, 1.9), random)
            if kind == 1:
                angle, waves = random.uniform(0, np.pi), random.uniform(2, 9)
                rows, columns = np.mgrid[:side, :side] / side
                along = rows * np.sin(angle) + columns * np.cos(angle) + random.uniform(0, 0.3) * noise
                noise = 0.7 * (np.sin(2 * np.pi * waves * along) > random.uniform(-0.5, 0.5)) + 0.3 * noise
            first, second = self._colours(frame, random)
            patch = first + (second - first) * _floats(noise)[..., None]
        # A body is darker towards its rim and from below.
        depth = _depth(inside > 0.5)
        light = _floats(0.75 + 0.25 * np.sqrt(depth / depth.max()) + np.linspace(0.15, -0.25, side)[:, None])
        return _scaled(CutOut(patch * light[..., None], inside), area, frame.shape, 0.0, random.uniform(0.6, 1.7))

    def _patch(self, side: int, frame: Image, random: np.random.Generator) -> Floats | None:
        """A square of a training frame in other colours, scale and direction; None where none was found that is labelled throughout."""
        image, labels = self._source(int(random.integers(len(self.sources))), frame)
        across = int(min(labels.shape) * random.uniform(0.1, 0.5)) + 1
        places = [[int(random.integers(extent - across + 1)) for extent in labels.shape] for _ in range(10)]
        parts = [np.s_[top : top + across, left : left + across] for top, left in places]
        known = [image[part] for part in parts if not (labels[part] == IGNORE).any()]
        if not known:
            return None
        turned = np.rot90(max(known[:2], key=np.std), int(random.integers(4)))
        return _recoloured(_floats(cv2.resize(turned, (side, side), interpolation=cv2.INTER_AREA)), random)

    def _colours(self, frame: Image, random: np.random.Generator) -> Floats:
        """Two colours ``[2, 3]`` in 0..255: of two pixels of a training frame that differ, or any."""
        if random.random() < 0.6:
            image, labels = self._source(int(random.integers(len(self.sources))), frame)
            known = image[labels != IGNORE]
            if len(known):
                some = _floats(known[random.integers(len(known), size=8)])
                return _floats(some[[0, np.abs(some - some[0]).sum(1).argmax()]])
        hsv = [[[random.uniform(0, 360), random.beta(1.5, 2), random.uniform(0.1, 0.95)] for _ in range(2)]]
        return _floats(cv2.cvtColor(_floats(hsv), cv2.COLOR_HSV2RGB)[0] * 255)

    def _file(self, random: np.random.Generator, area: int, frame: Image) -> CutOut:
        """A cut-out of the user's, which is an anomaly as it is: mirrored or tilted a little."""
        cut = read_cut_out(self.files[random.integers(len(self.files))])
        if random.random() < 0.5:
            cut = CutOut(cut.pixels[:, ::-1], cut.inside[:, ::-1])
        return _scaled(cut, area, frame.shape, random.uniform(-15, 15), 1.0)


def read_cut_out(path: Path) -> CutOut:
    """A cut-out object of an image file with an alpha channel; InputError for one that cannot be read, or whose alpha cuts nothing out."""
    remedy = "save the object alone as a PNG with a transparent background"
    with reading(f"object {path}", "a PNG with alpha", remedy):
        decoded = decode(read_bytes(path), cv2.IMREAD_UNCHANGED)
    if decoded.dtype != np.uint8 or decoded.ndim != 3 or decoded.shape[2] != 4:
        raise InputError(f"object {path} has no alpha channel of 8 bits", "a PNG with alpha", remedy)
    inside = _floats(decoded[..., 3] / 255)
    if not (inside > 0.5).any() or (inside > 0.5).all():
        raise InputError(f"object {path} is {'all' if inside.any() else 'nowhere'} opaque", "an object cut out", remedy)
    return CutOut(_floats(decoded[..., 2::-1]), inside)


def _size(random: np.random.Generator) -> float:
    return float(np.exp(random.uniform(np.log(SMALLEST), np.log(LARGEST))))


def _at(top: int, left: int, part: npt.NDArray[np.generic]) -> tuple[slice, slice]:
    return slice(top, top + part.shape[0]), slice(left, left + part.shape[1])


def _regions(labels: Labels) -> list[tuple[int, int, Mask]]:
    """Top, left and pixels of the connected regions of one class that are neither slivers nor larger than what is pasted, by size."""
    found = []
    for value in np.unique(labels[labels != IGNORE]):
        _, numbered, numbers, _ = cv2.connectedComponentsWithStats(_bytes(labels == value), connectivity=4)
        for number, (left, top, width, height, area) in enumerate(numbers[1:], start=1):
            if SMALLEST <= area / labels.size <= LARGEST and area >= max(0.3 * width * height, FEWEST):
                found.append(
                    (int(area), int(top), int(left), numbered[top : top + height, left : left + width] == number)
                )
    return [(top, left, part) for _, top, left, part in sorted(found, key=lambda one: one[:3])]


def _recoloured(pixels: Floats, random: np.random.Generator) -> Floats:
    """With another hue: the colours turned in CIELAB, and moved, so that greys change, too. Half are left nearly as they are, for
    loud colours must not become what finds an anomaly."""
    lab = cv2.cvtColor(pixels / 255, cv2.COLOR_RGB2LAB)
    loud, towards = random.random() < 0.5, random.uniform(0, 2 * np.pi)
    turn = np.radians(random.uniform(60, 300) if loud else random.uniform(-20, 20))
    rotation = _floats([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    moved = random.uniform(0, 20 if loud else 5) * _floats([np.cos(towards), np.sin(towards)])
    lab[..., 1:] = lab[..., 1:] @ rotation * random.uniform(0.8, 1.4) + moved
    return _floats(np.clip(cv2.cvtColor(lab, cv2.COLOR_LAB2RGB), 0, 1) * 255)


def _shape_of_noise(side: float, random: np.random.Generator) -> Floats:
    """The highest of the islands of a noise that falls off from the centre ``[N, N]``, N a power of two of at least ``side``."""
    height = fractal(int(side), random.uniform(1.6, 2.4), random)
    across = np.linspace(-1, 1, len(height))
    height -= np.hypot(across[:, None], across) ** 2
    _, islands = cv2.connectedComponents(_bytes(height > np.quantile(height, 0.7)))
    middle = islands[np.unravel_index(np.argmax(height), height.shape)]
    return _floats(islands == middle)


def _scaled(cut: CutOut, area: int, shape: tuple[int, ...], angle: float, stretch: float) -> CutOut:
    """Turned by an angle in degrees, stretched and scaled to an area in pixels, or less where the frame has no room for it."""
    scale = np.sqrt(area / cut.inside.sum())
    size = [
        max(1, round(side * scale * factor))
        for side, factor in zip(cut.inside.shape, (1 / stretch, stretch), strict=True)
    ]
    # Premultiplied, so that nothing bleeds in from what was cut away.
    layers = np.dstack([cut.pixels * cut.inside[..., None], cut.inside])
    layers = cv2.resize(layers, size[::-1], interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
    turn = cv2.getRotationMatrix2D(((size[1] - 1) / 2, (size[0] - 1) / 2), angle, 1.0)
    height, width = (int(np.ceil(v)) + 2 for v in np.abs(turn[:, :2])[::-1, ::-1] @ np.array(size))
    turn[:, 2] += (width - size[1]) / 2, (height - size[0]) / 2
    layers = cv2.warpAffine(layers, turn, (width, height), flags=cv2.INTER_CUBIC)
    inside = _floats(np.clip(layers[..., 3], 0, 1))
    excess = max(height / shape[0], width / shape[1]) / ROOM
    if excess > 1 and area > 1:
        return _scaled(cut, int(area / (1.05 * excess) ** 2), shape, angle, stretch)
    return CutOut(_floats(layers[..., :3] / np.maximum(inside, 1e-3)[..., None]), inside)


def _place(part: Mask, taken: Mask, size: float, random: np.random.Generator) -> tuple[int, int] | None:
    """Top and left of a place that is free: mostly in the lower half, where the larger stand nearer; None where none was found."""
    height, width = taken.shape
    near = np.log(size / SMALLEST) / np.log(LARGEST / SMALLEST)
    for _ in range(20):
        foot = random.uniform(0, 1) if random.random() < 0.2 else random.normal(0.6 + 0.35 * near, 0.12)
        top = int(np.clip(foot * height - part.shape[0], 0, height - part.shape[0]))
        left = int(random.integers(width - part.shape[1] + 1))
        if not (taken[_at(top, left, part)] & part).any():
            return top, left
    return None


def _blend(made: Image, cut: CutOut, place: tuple[int, int], share: float, random: np.random.Generator) -> Floats:
    """Paste into ``made``, so far towards the colours around it (1: to them); its weight ``[H, W]`` in 0..1, where 1 is the object alone."""
    depth = _depth(cut.inside > 0.5)
    width = min(random.uniform(0.7, 1.5) * max(1.0, made.shape[0] / 512), 0.4 * float(depth.max()))
    weight = np.clip((depth - 0.5) / max(width, 0.6), 0, 1)  # the outermost pixels are always mixed
    reach = int(np.sqrt(weight.sum()) / 4) + 5
    # From a multiple of 8 on: the blocks of the JPEG are those of the whole frame.
    top, left = (max(0, start - reach) // 8 * 8 for start in place)
    near = made[top : place[0] + len(depth) + reach, left : place[1] + depth.shape[1] + reach]
    part, alpha = _at(place[0] - top, place[1] - left, depth), np.zeros(near.shape[:2], np.float32)
    alpha[part] = weight
    ring = (cv2.dilate(_bytes(alpha > 0), np.ones((reach, reach), np.uint8)) == 1) & (alpha == 0)
    below = _floats(near)
    mixed = below.copy()
    moved = _matched(cut.pixels, weight == 1, near[ring] if ring.any() else near.reshape(-1, 3), share)
    moved = np.clip(moved, *_floats(np.percentile(made[::4, ::4], (0.5, 99.5))))  # no brighter than the frame
    mixed[part] += weight[..., None] * (moved - mixed[part])
    blurred = cv2.GaussianBlur(mixed, (0, 0), random.uniform(0.3, 0.8))
    seen = recompressed(_stored(_floats(blurred)), int(random.integers(85, 97)))
    near[:] = _stored(below + alpha[..., None] * (_floats(seen) - below))
    whole = np.zeros(made.shape[:2], np.float32)
    whole[_at(top, left, alpha)] = alpha
    return whole


def _matched(pixels: Floats, core: Mask, around: Image, share: float) -> Floats:
    """With mean and contrast moved towards those of the surroundings ``[N, 3]``."""
    own = pixels[core]
    contrast = np.clip((around.std() + 1) / (own.std() + 1), 0.7, 2) ** share
    mean = own.mean(0)
    return _floats((pixels - mean) * contrast + mean + share * (around.mean(0) - mean))


def _depth(part: Mask) -> Floats:
    """Distance of each pixel from what is outside, 1 for the outermost."""
    padded = cv2.copyMakeBorder(_bytes(part), 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=0)
    return _floats(cv2.distanceTransform(padded, cv2.DIST_L2, 5)[1:-1, 1:-1])


def _stored(values: Floats) -> Image:
    return _bytes(np.rint(np.clip(values, 0, 255)))


def _floats(values: npt.ArrayLike) -> Floats:
    return np.asarray(values, np.float32)


def _bytes(values: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    return np.asarray(values, np.uint8)
