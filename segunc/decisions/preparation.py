"""How a map is prepared before a threshold flags it: levelled within its frame, widened by a
margin, and cut to the surface that is promised.

Each step is a function of one frame alone and of settings that are fixed before the calibration. So
prepared maps of exchangeable frames are exchangeable, too, and every promise of
:mod:`segunc.decisions.risks` holds for them as for any other score. Settings that were chosen on
the frames of the calibration void it.

The margin is a grey dilation (Serra 1982): the pixels of the dilated map at or above a value are
those within the margin of a pixel of the map at or above it. So what is flagged stays nested, and
one threshold stays one number. Conformal prediction with a morphological margin (arXiv 2503.05618)
fixes the mask and chooses the margin; here the margin is fixed and the threshold is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.bounds import Bound, Settings
from segunc.core.errors import InputError
from segunc.maps.encoding import Array
from segunc.maps.regions import Mask, surface_hull

LevelName = Literal["none", "frame"]
MAX_MARGIN = 256  # pixels: a wider margin flags whole frames
MAX_RARITY = 4.5
"""Decades: a share of 3e-5 of a frame, 60 pixels of 2 million. Rarer pixels are not told apart."""
Prediction = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Preparation(Settings):
    """What is done with a map before it is compared with a threshold.

    Args:
        level: ``frame`` replaces each score by how rare it is within its frame, ``-log10`` of the
            share of the frame's pixels that reach it: 1 is reached by a tenth of them, 2 by a
            hundredth. With a place, pixels of the place alone are counted. ``none`` keeps the
            score.
        margin: pixels by which everything that is flagged is widened to each side, 0 to 256.
        place: names of the classes of the surface that is promised; none for the whole frame.
            Outside the convex hull of the pixels that are predicted as these classes, nothing is
            flagged and nothing is promised.
        place_ids: ids of these classes.

    >>> import numpy as np
    >>> scores = np.array([[0.1, 0.2, 0.3, 0.4, 0.9]])
    >>> Preparation(margin=1)(scores)
    array([[0.2, 0.3, 0.4, 0.9, 0.9]])
    >>> Preparation(level="frame")(scores).round(2)
    array([[0.  , 0.1 , 0.22, 0.4 , 0.7 ]], dtype=float16)
    """

    level: LevelName = "none"
    margin: Annotated[int, Bound(least=0, most=MAX_MARGIN)] = 0
    place: tuple[str, ...] = ()
    place_ids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        """Return whether anything is done."""
        return self.level != "none" or bool(self.margin or self.place_ids)

    def __call__(
        self, scores: Array, prediction: Prediction | None = None, kept: Mask | None = None
    ) -> Array:
        """Return the prepared map of a frame, ``[H, W]``; -inf outside the place.

        Args:
            scores: of the frame, floats ``[H, W]``.
            prediction: class ids ``[H, W]``; needed for a place.
            kept: which pixels count, bool ``[H, W]``; None for all.

        Raises:
            InputError: there is a place, and no prediction of the size of the map.
        """
        inside = self.inside(prediction, scores.shape)
        prepared = self.ranked(scores, counted_pixels(inside, kept))
        if inside is None:
            return prepared
        return np.where(inside, prepared, prepared.dtype.type(-np.inf))

    def ranked(self, scores: Array, counted: Mask | None = None) -> Array:
        """Return a map ``[H, W]`` after level and margin: float16 rarities, or else the type of
        ``scores``.

        Args:
            scores: of the frame, as values or as they are stored ``[H, W]``.
            counted: which pixels count, bool ``[H, W]``; None for all. The others, and scores that
                are not finite, change nothing in their neighbours.
        """
        if not self:
            return scores
        finite = np.isfinite(scores)
        if not finite.all():  # only where no label counts, in maps of another tool
            counted = counted_pixels(finite, counted)
        if self.level == "frame":
            scores = rarity(scores, counted)
        if not self.margin:
            return scores
        if counted is not None and counted.any():
            scores = np.where(counted, scores, scores[counted].min())
        return dilated(scores, self.margin)

    def inside(self, prediction: Prediction | None, shape: tuple[int, ...]) -> Mask | None:
        """Return which pixels of a frame belong to the place, bool ``[H, W]``; None for all.

        Raises:
            InputError: there is a place, and no prediction of this shape.
        """
        if not self.place_ids:
            return None
        if prediction is None:
            raise InputError(
                f"the place {', '.join(self.place)} needs the prediction of each frame, "
                "and these maps have none",
                hint="write maps with segunc predict, or leave out --place",
            )
        if prediction.shape != shape:
            raise InputError(
                f"the prediction has {prediction.shape[0]} x {prediction.shape[1]} pixels, and the "
                f"map {shape[0]} x {shape[1]}"
            )
        return surface_hull(prediction, self.place_ids)

    def name_of(self, score: str) -> str:
        """Return what the numbers of a prepared map of a score are called.

        >>> Preparation(level="frame").name_of("entropy")
        'rarity of entropy in its frame'
        """
        return f"rarity of {score} in its frame" if self.level == "frame" else score

    @property
    def scale(self) -> str:
        """What the numbers of a prepared map mean to a reader; empty where they stay those of the
        score.
        """
        if self.level != "frame":
            return ""
        where = (
            f"the surface of {', '.join(self.place)} in this frame" if self.place else "this frame"
        )
        return f"3 = one in 1,000 pixels of {where} scores as high"

    @property
    def options(self) -> str:
        """The options of ``segunc threshold`` that prepare maps so; empty for nothing. Verdicts
        record it, so the same preparation has the same text.

        >>> Preparation(margin=16, place=("sidewalk", "road"), place_ids=(1, 0)).options
        '--margin 16 --place road,sidewalk'
        """
        options = []
        if self.level == "frame":
            options.append("--level-frames")
        if self.margin:
            options.append(f"--margin {self.margin}")
        if self.place:
            options.append(f"--place {','.join(sorted(self.place))}")
        return " ".join(options)

    @property
    def words(self) -> str:
        """What is done, as the end of a sentence on flagged pixels; empty for nothing."""
        words = []
        if self.level == "frame":
            words.append("scores are ranked within their frame")
        if self.margin:
            words.append(f"what is flagged is widened by {self.margin} pixels")
        if self.place:
            words.append(f"only the surface of {', '.join(self.place)} is flagged")
        return "; ".join(words)


AS_IT_IS = Preparation()
"""The preparation that changes nothing."""


def rarity(scores: Array, kept: Mask | None = None) -> npt.NDArray[np.float16]:
    """Return how rare each score is within its frame: ``-log10`` of the share of the pixels that
    reach it, 0 to :data:`MAX_RARITY`.

    Equal scores are equally rare, and higher scores are no less rare.

    Args:
        scores: of a frame ``[H, W]``.
        kept: which pixels count, bool ``[H, W]``; None for all. The others are 0.

    >>> import numpy as np
    >>> rarity(np.array([[3, 1, 1, 2]])).round(2)
    array([[0.6, 0. , 0. , 0.3]], dtype=float16)
    """
    counted = scores.ravel() if kept is None else scores[kept]
    _, places, pixels = np.unique(counted, return_inverse=True, return_counts=True)
    reached = pixels[::-1].cumsum()[::-1] / max(counted.size, 1)
    rare = np.minimum(-np.log10(reached) + 0.0, MAX_RARITY).astype(np.float16)
    if kept is None:
        return np.asarray(rare[places.reshape(scores.shape)])
    whole = np.zeros(scores.shape, np.float16)
    whole[kept] = rare[places.ravel()]
    return whole


def dilated(scores: Array, margin: int) -> Array:
    """Return for each pixel the largest score in the square around it, ``[H, W]`` of the same type.

    Args:
        scores: of a frame ``[H, W]``, without NaN.
        margin: pixels from the middle of the square to its edge, at least 1.

    >>> import numpy as np
    >>> dilated(np.array([[0.0, 0.0, 0.0, 5.0]]), 2)
    array([[0., 5., 5., 5.]])
    """
    side = 2 * margin + 1
    # A square costs the same for every margin; a disc of OpenCV costs its area.
    square = np.ones((side, side), np.uint8)
    if scores.dtype == np.float16:
        # OpenCV does not dilate halves, and float32 holds each of them exactly.
        return cv2.dilate(scores.astype(np.float32), square).astype(np.float16)
    return np.asarray(cv2.dilate(scores, square), scores.dtype)


def counted_pixels(inside: Mask | None, kept: Mask | None) -> Mask | None:
    """Return the pixels of both masks ``[H, W]``, as of a place and of the region of interest; None
    stands for all pixels.
    """
    if inside is None:
        return kept
    return inside if kept is None else inside & kept


def classes_of_place(place: Sequence[str], names: Sequence[str] | None) -> tuple[int, ...]:
    """Return the ids of the classes of a place.

    Args:
        place: names of classes; ids as text where maps do not name their classes.
        names: of the classes of the maps; None where they do not say.

    Raises:
        InputError: the maps have no such class.
    """
    ids = []
    for name in place:
        if names is not None and name in names:
            ids.append(names.index(name))
        elif names is None and name.isdecimal() and int(name) < 255:
            ids.append(int(name))
        elif names is None:
            raise InputError(
                f"--place {name}: these maps do not name their classes",
                hint="give the numbers of the classes, e.g. --place 0,1",
            )
        else:
            raise InputError(
                f"--place {name}: the maps have no such class",
                hint=f"--place is of {', '.join(names)}",
            )
    return tuple(ids)
