"""A real dashcam clip through the sources; needs SEGUNC_DATA."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from segunc.frames.sources import Selection, open_source


@pytest.fixture
def clip() -> Path:
    if "SEGUNC_DATA" not in os.environ:
        pytest.skip("SEGUNC_DATA is not set")
    path = Path(os.environ["SEGUNC_DATA"]) / "video" / "solidWhiteRight.mp4"
    if not path.exists():
        pytest.skip(f"{path.name} is not in SEGUNC_DATA")
    return path


def test_h264_clip_is_read_to_its_end(clip: Path) -> None:
    av = pytest.importorskip("av")
    source = open_source(clip)
    assert (source.fps, source.length_hint) == (25.0, 221)
    frames = list(source.frames(lambda index, name: index not in (0, 110, 220)))
    assert [frame.name for frame in frames] == ["000000", "000110", "000220"]
    with av.open(str(clip)) as container:
        for index, decoded in enumerate(container.decode(video=0)):
            if index in (0, 110, 220):
                image = frames.pop(0).image
                assert image is not None
                # Two decoders, two conversions from YUV: equal within their rounding.
                assert abs(image.astype(int) - decoded.to_ndarray(format="rgb24")).mean() < 2.0


def test_cut_mp4_without_its_index_cannot_be_opened(clip: Path, tmp_path: Path) -> None:
    from segunc.core.errors import InputError

    cut = tmp_path / "cut.mp4"
    cut.write_bytes(clip.read_bytes()[:500_000])
    try:
        source = open_source(cut)
    except InputError as error:
        assert "cannot be opened" in str(error)  # noqa: PT017
    else:
        *_, last = source.frames(lambda index, name: True)
        assert "video ends at frame" in (last.error or "")


def test_both_decoders_give_the_same_bytes(clip: Path) -> None:
    pytest.importorskip("av")
    selection = Selection(every=25, start=1.0, end=6.0)
    ours, theirs = (
        open_source(clip, decoder="opencv", selection=selection),
        open_source(clip, decoder="pyav", selection=selection),
    )
    for first, second in zip(ours, theirs, strict=True):
        assert (first.name, first.time) == (second.name, second.time)
        assert (first.image == second.image).all()
