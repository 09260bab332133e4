"""What a model returns of images: maps with a typed field for each score."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, nearest
from segunc.data.images import AnyImage
from segunc.posteriors.map_origin import ClassMap, Origin, ScoreMap
from segunc.scores import SCORES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Ranges: TypeAlias = Mapping[str, tuple[float, float]]


class ScoreFields:
    """The scores of this package as attributes, ``-`` written as ``_``. A test holds that they are
    those of :data:`segunc.scores.SCORES`.
    """

    msp: ScoreMap
    entropy: ScoreMap
    aleatoric: ScoreMap
    epistemic: ScoreMap
    deterministic_msp: ScoreMap
    deterministic_entropy: ScoreMap
    deterministic_max_logit: ScoreMap
    deterministic_energy: ScoreMap
    mean_max_logit: ScoreMap
    mean_energy: ScoreMap
    logit_variance: ScoreMap
    rba: ScoreMap
    knn: ScoreMap
    anomaly: ScoreMap
    set_size: ScoreMap

    # Hidden from type checkers, for which every name would be an attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> ScoreMap:
            # Python and libraries ask for many names with underscores; while an object is
            # unpickled it has no scores.
            scores = {} if name.startswith("_") else self.scores
            score = name.replace("_", "-")
            if score in scores:
                return scores[score]
            message = f"'{type(self).__name__}' object has no attribute '{name}'"
            if not name.startswith("_"):
                message = _no_score(name, scores, [*map(_attribute, scores), *_FIELDS])
            raise AttributeError(message, name=name, obj=self)

    def __dir__(self) -> Iterable[str]:
        scores: Mapping[str, ScoreMap] = self.scores  # type: ignore[attr-defined]
        return sorted({*super().__dir__(), *map(_attribute, scores)})


_FIELDS = ("prediction", "scores", "image", "classes", "palette", "plot", "save")


def _attribute(score: str) -> str:
    """Return the name of a score as an attribute."""
    return score.replace("-", "_")


def _no_score(name: str, scores: Iterable[str], names: Iterable[str]) -> str:
    """Return why maps have no score of a name.

    Args:
        name: which was asked for.
        scores: those of the maps.
        names: what could have been asked for in the same way.
    """
    score = name.replace("_", "-")
    there = ", ".join(scores)
    if score in SCORES:
        asked = ", ".join(f'"{known}"' for known in (*scores, score))
        return f"score '{score}' was not asked for; call the model with scores=({asked})"
    question = nearest(name, [*names, *map(_attribute, SCORES)])
    return f"there is no score '{name}'{question}; the maps hold {there}"


@dataclass(frozen=True, eq=False, repr=False)
class ImageMaps(ScoreFields):
    """The maps of one image. Each score is an attribute, too: ``maps.entropy``,
    ``maps.deterministic_energy``; a score of another package is ``maps["its-name"]``.

    ``repr`` lists the scores with their ranges, and a notebook shows :meth:`plot`.

    Attributes:
        prediction: class ids uint8 ``[H, W]``.
        scores: float32 ``[H, W]`` by name, higher where the network is to be trusted less;
            entropies are shares of ln C, 0..1.
        image: as it was given to the network, uint8 ``[H, W, K]``, or float32 in 0..1; None where
            it is not known. Figures show its first three channels as red, green and blue.
        classes: the names of the class ids.
        palette: their colours (red, green, blue) in 0..255; empty where the model has none.
        origin: what made the maps; None where it is not known.
        reasons: of a sum of scores: what made the strongest pixel (x, y) of each strong region.

    >>> maps = model(image, draws=4, scores=("entropy", "epistemic"))
    >>> maps.prediction.shape == maps.entropy.shape == image.shape[:2]
    True
    >>> list(maps.scores)
    ['entropy', 'epistemic']
    >>> maps.entropi
    Traceback (most recent call last):
    AttributeError: there is no score 'entropi' (did you mean entropy?); the maps hold entropy, \
epistemic
    >>> maps.msp
    Traceback (most recent call last):
    AttributeError: score 'msp' was not asked for; call the model with scores=("entropy", \
"epistemic", "msp")
    """

    prediction: ClassMap
    scores: Mapping[str, ScoreMap]
    image: AnyImage | None = None
    classes: tuple[str, ...] = ()
    palette: tuple[tuple[int, int, int], ...] = ()
    origin: Origin | None = None
    reasons: Mapping[tuple[int, int], Mapping[str, Any]] = field(default_factory=dict)

    def __getitem__(self, score: str) -> ScoreMap:
        """Return the map of a score by its name.

        Raises:
            InputError: the maps do not hold it.
        """
        if not isinstance(score, str):
            raise InputError(
                f"{score!r} is not the name of a score, and these are the maps of one image",
                hint=f"name one of {', '.join(self.scores)}",
            )
        if score not in self.scores:
            raise InputError(_no_score(score, self.scores, self.scores))
        return self.scores[score]

    def __contains__(self, score: object) -> bool:
        """Return whether the maps hold a score of this name."""
        return score in self.scores

    def __repr__(self) -> str:
        height, width = self.prediction.shape
        head = f"{type(self).__name__}: prediction [{height}, {width}]"
        return "\n".join([f"{head} {self._classes_words()}", *_score_lines([self])])

    def _classes_words(self) -> str:
        """Say how many classes there are."""
        if not self.classes:
            return "of classes without names"
        return f"of {len(self.classes)} classes"

    def plot(
        self,
        scores: str | Sequence[str] | None = None,
        *,
        ranges: Ranges | None = None,
    ) -> Figure:
        """Draw the image, the prediction in the colours of the classes, and scores.

        Scores have the colours of the review page. Of a score without a fixed range they go from
        the 1st to the 99th percentile of this image, which the figure says: such figures of two
        images compare only with the same ``ranges``.

        Args:
            scores: names. None draws all scores of up to six, else ``anomaly``, ``entropy`` and
                ``epistemic``; of a single draw none that tells how draws differ.
            ranges: score -> values at the two ends of its colours.

        Returns:
            A figure of matplotlib without pyplot: ``figure.savefig("maps.png")``. A notebook shows
            it.

        Raises:
            InputError: a score that the maps do not hold, or a range that does not rise.

        >>> figure = maps.plot("entropy")
        >>> figure.savefig(folder / "maps.png")
        """
        return _draw((self,), scores, ranges)

    def _repr_png_(self) -> bytes:
        """Return the figure for a notebook, as PNG."""
        figure: Any = self.plot()
        png: bytes = figure._repr_png_()
        return png

    def save(
        self,
        folder: Path | str,
        name: str | Sequence[str],
        *,
        images: Path | str | None = None,
        compact: bool = False,
    ) -> None:
        """Write the maps into a folder as ``segunc predict`` does: ``SCORE/NAME``,
        ``prediction/NAME.png``, a line in ``frames.jsonl`` and a manifest.

        Further calls with other names add to the folder, if the model, its settings and the scores
        are the same. To save the same maps under the same name again changes nothing. The files are
        those of ``segunc predict --precision float32`` to the byte if :meth:`segunc.Model.place`
        was called, which lays the weights out as the command line does; else to a rounding.

        Args:
            folder: of the maps; it may not exist yet.
            name: of the frame; ``/`` makes folders.
            images: another folder, where the image is written as ``NAME.png`` in 8 bits, for
                ``segunc overlay --images`` and ``segunc review --images``; None writes none.
            compact: see :class:`segunc.options.PredictOptions`.

        Raises:
            InputError: the folder holds other maps of this name, maps of another run, or other
                files; or a value that a map cannot store.

        >>> maps.save(folder / "saved", "frame-1")
        >>> sorted(path.name for path in (folder / "saved").iterdir())
        ['entropy', 'epistemic', 'frames.jsonl', 'manifest.json', 'prediction']
        """
        from segunc.posteriors.map_folder import save_maps

        save_maps(folder, _names(name), [self], images=images, compact=compact)


class BatchMaps(ImageMaps):
    """The maps of a batch or a list of images: a sequence of :class:`ImageMaps`, whose fields are
    stacked.

    Attributes:
        prediction: class ids uint8 ``[N, H, W]``.
        scores: float32 ``[N, H, W]`` by name.

    Raises:
        InputError: of its fields where the images differ in size: take the maps one by one.

    >>> batch = model([image, image], draws=4, scores=("entropy",))
    >>> len(batch), batch.entropy.shape == (2, *image.shape[:2])
    (2, True)
    >>> bool((batch[1].entropy == batch.entropy[1]).all())
    True
    """

    _maps: tuple[ImageMaps, ...]

    def __init__(self, maps: Sequence[ImageMaps]) -> None:
        if not maps:
            raise InputError("a batch of no maps", hint="give the maps of at least one image")
        for number, image in enumerate(maps):
            if set(image.scores) != set(maps[0].scores):
                raise InputError(
                    f"maps {number} of the batch hold {', '.join(image.scores)}, and the first "
                    f"hold {', '.join(maps[0].scores)}",
                    hint="ask the model for the same scores of all images",
                )
        # The fields of a frozen dataclass; those that differ between images are properties here.
        object.__setattr__(self, "_maps", tuple(maps))
        object.__setattr__(self, "classes", maps[0].classes)
        object.__setattr__(self, "palette", maps[0].palette)
        object.__setattr__(self, "origin", maps[0].origin)

    @property
    def prediction(self) -> ClassMap:
        return _stacked([maps.prediction for maps in self._maps])

    @property
    def scores(self) -> Mapping[str, ScoreMap]:
        return _StackedScores(self._maps)

    @property
    def image(self) -> AnyImage | None:
        images: list[AnyImage] = []
        for maps in self._maps:
            if maps.image is None:
                return None
            images.append(maps.image)
        if len({image.dtype for image in images}) > 1:
            images = [_as_float(image) for image in images]
        return _stacked(images)

    @property
    def reasons(self) -> Mapping[tuple[int, int], Mapping[str, Any]]:
        raise InputError(
            "pixels of a batch have no reasons of their own", hint="batch[0].reasons, of one image"
        )

    def __len__(self) -> int:
        return len(self._maps)

    def __iter__(self) -> Iterator[ImageMaps]:
        return iter(self._maps)

    @overload
    def __getitem__(self, key: str) -> ScoreMap: ...
    @overload
    def __getitem__(self, key: int) -> ImageMaps: ...
    @overload
    def __getitem__(self, key: slice) -> BatchMaps: ...
    def __getitem__(self, key: str | int | slice) -> ScoreMap | ImageMaps:
        """Return the stacked map of a score, the maps of one image, or those of some images."""
        if isinstance(key, str):
            return super().__getitem__(key)
        if isinstance(key, slice):
            return BatchMaps(self._maps[key])
        return self._maps[key]

    def __repr__(self) -> str:
        sizes = {maps.prediction.shape for maps in self._maps}
        shape = f"{len(sizes)} sizes"
        if len(sizes) == 1:
            height, width = sizes.pop()
            shape = f"[{len(self)}, {height}, {width}]"
        head = f"{type(self).__name__} of {len(self)} images: prediction {shape}"
        return "\n".join([f"{head} {self._classes_words()}", *_score_lines(self._maps)])

    def plot(
        self,
        scores: str | Sequence[str] | None = None,
        *,
        ranges: Ranges | None = None,
    ) -> Figure:
        """Draw a row for each image, see :meth:`ImageMaps.plot`; the images share the colours.

        Args:
            scores: as for one image.
            ranges: score -> values at the two ends of its colours, for all images.

        Returns:
            A figure of matplotlib without pyplot.

        Raises:
            InputError: more images than a figure shows, :data:`MOST_ROWS`.
        """
        if len(self) > MOST_ROWS:
            raise InputError(
                f"a figure of {len(self)} images is too high; it shows at most {MOST_ROWS}",
                hint=f"maps[:{MOST_ROWS}].plot()",
            )
        return _draw(self._maps, scores, ranges)

    def save(
        self,
        folder: Path | str,
        name: str | Sequence[str],
        *,
        images: Path | str | None = None,
        compact: bool = False,
    ) -> None:
        """Write the maps of all images, see :meth:`ImageMaps.save`.

        Args:
            folder: of the maps.
            name: a list of one name for each image.
            images, compact: as there.
        """
        from segunc.posteriors.map_folder import save_maps

        save_maps(folder, _names(name), self._maps, images=images, compact=compact)


MOST_ROWS = 16
"""Images that one figure shows."""


class _StackedScores(Mapping[str, ScoreMap]):
    """The maps of several images by the name of their score, each stacked when it is asked for."""

    def __init__(self, maps: Sequence[ImageMaps]) -> None:
        self._maps = maps

    def __getitem__(self, score: str) -> ScoreMap:
        return _stacked([maps.scores[score] for maps in self._maps])

    def __iter__(self) -> Iterator[str]:
        return iter(self._maps[0].scores)

    def __len__(self) -> int:
        return len(self._maps[0].scores)


def _stacked(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return arrays of one size as one; InputError where their sizes differ."""
    sizes = list(dict.fromkeys(array.shape[:2] for array in arrays))
    if len(sizes) > 1:
        shown = " and ".join(f"{height} x {width}" for height, width in sizes[:2])
        raise InputError(
            f"the images of this batch have {len(sizes)} sizes ({shown}), so their maps make no "
            "one array",
            hint="for maps in batch: ...",
        )
    return np.stack(arrays)


def _as_float(image: AnyImage) -> npt.NDArray[np.float32]:
    """Return an image as float32 in 0..1."""
    floats = image.astype(np.float32)
    return floats / np.float32(255) if image.dtype == np.uint8 else floats


def _names(name: str | Sequence[str]) -> list[str]:
    """Return a list of names, also where one name was given.

    Raises:
        InputError: something else than texts was given.
    """
    names = [name] if isinstance(name, str) else name
    if not isinstance(names, Iterable) or isinstance(names, (bytes, Mapping)):
        raise InputError(f"{name!r} is neither a name nor a list of names", hint='give a text: "a"')
    names = list(names)
    for each in names:
        if not isinstance(each, str):
            raise InputError(f"the name {each!r} is not a text", hint=f'give "{each}"')
    return names


def _score_lines(maps: Sequence[ImageMaps]) -> list[str]:
    """Return a line for each score of images: its name, its range of values, its unit."""
    scores = list(maps[0].scores)
    length = max(map(len, scores), default=0)
    lines = []
    for score in scores:
        low = min(float(image.scores[score].min()) for image in maps)
        high = max(float(image.scores[score].max()) for image in maps)
        unit = SCORES[score].unit if score in SCORES else ""
        size = list(maps[0].scores[score].shape)
        shape = f"{size} " if len(maps) == 1 else ""
        lines.append(f"  {score:{length}}  {shape}{low:.3g} to {high:.3g} ({unit})")
    return lines


def _draw(
    maps: Sequence[ImageMaps],
    scores: str | Sequence[str] | None,
    ranges: Ranges | None,
) -> Figure:
    """Return the figure of images; InputError without matplotlib."""
    try:
        from segunc.posteriors.map_figure import draw_maps
    except ModuleNotFoundError as error:
        raise InputError(
            f"maps are drawn with a package that is not installed ({error})",
            hint="pip install matplotlib",
        ) from error
    chosen = None if scores is None else _names(scores)
    for name in (*(chosen or ()), *(ranges or {})):
        maps[0][name]  # raises where there is none
    for name, ends in (ranges or {}).items():
        numbers = ends if isinstance(ends, (tuple, list)) else ()
        if len(numbers) != 2 or not all(isinstance(number, Real) for number in numbers):
            raise InputError(
                f"the range {ends!r} of '{name}' is not two numbers",
                hint=f'ranges={{"{name}": (0, 1)}}',
            )
    return draw_maps(maps, chosen, ranges or {})
