"""Overlays that ``segunc predict`` writes beside the maps, frame by frame, and their video at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from segunc.data.images import Image
from segunc.errors import InputError
from segunc.files import inside
from segunc.maps.encoding import UNIT_SCORES
from segunc.maps.folder import OVERLAY
from segunc.maps.pipeline import DrawOverlay
from segunc.maps.sources import Frame, FrameSource
from segunc.maps.store import Maps


def overlay_drawer(score: str, manifest: dict[str, Any]) -> DrawOverlay:
    """Draws the overlay of a frame.

    Raises:
        InputError: the score is not written, or has no fixed range.
    """
    from segunc.review.colormap import display_range
    from segunc.review.overlay import Legend, draw_overlay, model_line, score_unit

    if score not in manifest["maps"]:
        raise InputError(f"--overlay-score {score}", "one of the maps that are written", "add it to --scores")
    if score not in UNIT_SCORES:
        raise InputError(f"--overlay-score {score}", f"a score with a fixed range: {', '.join(UNIT_SCORES)}", "")
    legend = Legend(score, score_unit(manifest, score), display_range(score), model_line(manifest))

    def draw(frame: Frame, maps: Maps) -> Image:
        assert frame.image is not None
        return draw_overlay(frame.image, np.asarray(maps[score]), legend)

    return draw


def write_overlay_video(out: Path, source: FrameSource) -> Path:
    """``overlay.webm`` of the overlays of a finished video, at the rate of the frames that were taken."""
    from segunc.review.video import write_video

    pictures = [inside(out, f"{OVERLAY}/{path.name}") for path in sorted((out / OVERLAY).glob("*.jpg"))]
    return write_video(pictures, out / f"{OVERLAY}.webm", (source.fps or 25.0) / source.selection.every)
