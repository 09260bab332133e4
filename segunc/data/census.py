"""Count the values or colours of labels that are spread over a folder, and say what they are."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import frame_order, read_bytes
from segunc.data.images import (
    Colour,
    colour_codes,
    colour_of,
    decode_labels,
    label_rank,
    palette_of,
)
from segunc.data.labels import IGNORE, mixed_masks
from segunc.data.pairing import Pair

MAX_CLASSES = 150
"""No public label map of roads has more classes; more values are not classes."""
SAMPLED_LABELS = 200
"""Labels that are looked at, spread over the splits."""
MAX_SECONDS = 6.0
"""Time after which no further label is looked at."""
_CHOOSE = "--labels names the folder or a pattern of the class labels"

Value = int | Colour
"""An id, or a colour."""


@dataclass
class Census:
    """What the labels of a folder hold, of those that were looked at."""

    kind: str = "ids"
    """``ids`` or ``colours``."""
    by_split: dict[str, Counter[Value]] = field(default_factory=dict)
    """The pixels of each value in each split."""
    palette: dict[int, Colour] = field(default_factory=dict)
    """The colours of ids, from the palettes of the files."""
    looked_at: int = 0
    """Number of labels that were looked at."""
    by_label: dict[Path, frozenset[Value]] = field(default_factory=dict)
    """The values of each label that was looked at, sorted by name; labels of more than
    :data:`MAX_CLASSES` values are left out."""

    @property
    def pixels(self) -> Counter[Value]:
        """The pixels of each value in all splits."""
        total: Counter[Value] = Counter()
        for counts in self.by_split.values():
            total.update(counts)
        return total

    def values_of(self, split: str) -> frozenset[Value]:
        """Return the values that the labels of a split hold; none of an unknown split."""
        return frozenset(self.by_split.get(split, ()))

    def labels_with(self, values: Collection[Value]) -> list[Path]:
        """Return the labels that hold any of some values."""
        return [label for label, held in self.by_label.items() if not held.isdisjoint(values)]


def take_census(root: Path, pairs: Sequence[Pair], *, allow_mixed: bool) -> Census:
    """Return what the labels of pairs hold.

    Args:
        root: the folder of the pairs.
        pairs: images and labels.
        allow_mixed: take masks of 0 and 1 beside masks of 0 and 255 as they are.

    Raises:
        InputError: a label cannot be read, or the labels are of two kinds, no class labels, or
            masks of two encodings.
    """
    counter = _Counter(root)
    start = time.monotonic()
    for pair in _spread(pairs):
        counter.add(pair)
        if time.monotonic() - start > MAX_SECONDS:
            break
    return counter.census(allow_mixed=allow_mixed)


def _spread(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Yield pairs spread over each split.

    The first twenty or so are spread over all, in case the time ends before the last.
    """
    by_split: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_split[pair.split].append(pair)
    chosen: list[Pair] = []
    for pairs_of_split in by_split.values():
        count = len(pairs_of_split)
        share = SAMPLED_LABELS * count // len(pairs)
        wanted = min(count, max(1, share, SAMPLED_LABELS // 10))
        indices = np.linspace(0, count - 1, wanted).astype(int)
        chosen += [pairs_of_split[index] for index in indices.tolist()]
    first = chosen[:: max(1, len(chosen) // 20)]
    yield from dict.fromkeys([*first, *chosen])


class _Counter:
    """Counts labels one by one."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # Grey labels of three channels may hold ids or colours, which other labels decide.
        self._counts: dict[str, dict[str, Counter[int]]] = {
            kind: defaultdict(Counter) for kind in ("ids", "colours", "grey")
        }
        self._examples: dict[str, Path] = {}
        self._values: dict[Path, frozenset[int]] = {}  # of labels of one channel
        # Of each label that may hold classes: the kind of its codes, and the codes.
        self._codes: dict[Path, tuple[str, frozenset[int]]] = {}
        self._palette: dict[int, Colour] = {}
        self._looked_at = 0

    def add(self, pair: Pair) -> None:
        """Count the pixels of a label.

        Raises:
            InputError: the label cannot be read, or contradicts those before it.
        """
        path = self._root / pair.label
        try:
            data = read_bytes(path)
            pixels = decode_labels(data)
        except Exception as error:  # Pillow's decoders have no common exception
            hint = "repair or remove it"
            if label_rank(path) == 2:
                hint = "write labels as PNG: JPEG changes their values"
            raise InputError(f"label {path} cannot be read ({error})", hint=hint) from error
        if pixels.ndim == 2:
            counts = _counted(pixels)
            self._add_counts("ids", pair, counts)
            self._values[pair.label] = frozenset(counts)
            self._examples.setdefault("ids", pair.label)
            self._add_palette(path, palette_of(data), counts)
        elif (pixels == pixels[..., :1]).all():
            self._add_counts("grey", pair, _counted(pixels[..., 0]))
        else:
            self._add_counts("colours", pair, _counted(colour_codes(pixels)))
            self._examples.setdefault("colours", pair.label)
        self._looked_at += 1

    def _add_counts(self, kind: str, pair: Pair, counts: dict[int, int]) -> None:
        self._counts[kind][pair.split].update(counts)
        if len(counts) <= MAX_CLASSES:
            self._codes[pair.label] = kind, frozenset(counts)

    def _add_palette(self, path: Path, palette: dict[int, Colour], counts: dict[int, int]) -> None:
        for value in palette.keys() & counts.keys():
            if self._palette.setdefault(value, palette[value]) != palette[value]:
                raise InputError(
                    f"label {path} shows {value} in another colour than labels before it, "
                    "so its values are not ids",
                    hint="write the labels again as RGB, or all with one palette",
                )

    def census(self, *, allow_mixed: bool) -> Census:
        """Return what was counted.

        Raises:
            InputError: labels of two kinds were counted, or labels that hold no classes.
        """
        where = f"the labels in {self._root}"
        if len(self._examples) == 2:
            raise InputError(
                f"{where} are of two kinds: {self._examples['ids']} holds ids "
                f"and {self._examples['colours']} colours",
                hint=_CHOOSE,
            )
        kind = "colours" if self._counts["colours"] else "ids"
        census = Census(
            kind=kind,
            by_split=self._values_by_split(kind),
            palette=self._palette,
            looked_at=self._looked_at,
            by_label=self._values_by_label(kind),
        )
        _check_classes(census, where)
        if not allow_mixed:
            self._check_masks(where)
        return census

    def _values_by_split(self, kind: str) -> dict[str, Counter[Value]]:
        """Return the pixels of each id or colour, with those of grey labels of three channels."""
        by_split: dict[str, Counter[Value]] = defaultdict(Counter)
        for kind_of_code in (kind, "grey"):
            for split, counts in self._counts[kind_of_code].items():
                for code, count in counts.items():
                    by_split[split][_value_of(code, kind_of_code, kind)] += count
        return dict(by_split)

    def _values_by_label(self, kind: str) -> dict[Path, frozenset[Value]]:
        """Return the values of each label, sorted by name."""
        by_label: dict[Path, frozenset[Value]] = {}
        for label in sorted(self._codes, key=lambda label: frame_order(label.as_posix())):
            kind_of_code, codes = self._codes[label]
            by_label[label] = frozenset(_value_of(code, kind_of_code, kind) for code in codes)
        return by_label

    def _check_masks(self, where: str) -> None:
        mixed = mixed_masks(self._values)
        if mixed is None:
            return
        of_ones, of_255 = mixed
        raise InputError(
            f"{where} are masks of two kinds: {of_ones} holds 0 and 1, and {of_255} 0 and 255",
            hint="write them alike; or --void 255 if 255 marks what nobody labelled",
        )


def _check_classes(census: Census, where: str) -> None:
    """Raise InputError for values that are too large or too many to be classes."""
    pixels = census.pixels
    largest = max((value for value in pixels if isinstance(value, int)), default=0)
    if largest > IGNORE:
        raise InputError(
            f"{where} hold values up to {largest}, but class ids are 0 to 255: "
            "these look like instances or depths",
            hint=_CHOOSE,
        )
    if len(pixels) <= MAX_CLASSES:
        return
    reason = "these look like photographs or instances"
    share_of_30 = sum(count for _, count in pixels.most_common(30)) / pixels.total()
    if share_of_30 > 0.5:
        reason = (
            f"30 cover {share_of_30:.0%} of the pixels: "
            "edges were smoothed when labels were resized or compressed"
        )
    raise InputError(f"{where} hold {len(pixels)} {census.kind}; {reason}", hint=_CHOOSE)


def _value_of(code: int, kind_of_code: str, kind: str) -> Value:
    """Return the id or the colour that a code stands for.

    Args:
        code: of pixels of a label.
        kind_of_code: ``ids``, ``colours``, or ``grey`` for labels of three equal channels.
        kind: what the labels hold, ``ids`` or ``colours``.
    """
    if kind == "ids":
        return code
    if kind_of_code == "grey":
        return code, code, code
    return colour_of(code)


def _counted(pixels: npt.NDArray[np.generic]) -> dict[int, int]:
    values, counts = np.unique(pixels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
