"""Overlays and panels: fixed colours, a legend that is there and legible, outlines where the labels are."""

from __future__ import annotations

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.gallery import overlay as drawing
from segunc.gallery.colormap import colour_table, display_range
from segunc.gallery.overlay import (
    FLAGGED,
    LABELLED,
    MINIMUM_TEXT,
    THEMES,
    Legend,
    blend,
    draw_overlay,
    draw_panel,
    frame_caption,
)

NOTE = "ABNN, 4 members, 24 draws, seed 0, scope all"


def legend(score: str = "entropy") -> Legend:
    return Legend(score, "share of ln C", display_range(score), NOTE)


def image(height: int = 360, width: int = 640) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Every text that is drawn from now on, with the height of its capitals."""
    texts: dict[str, int] = {}
    put = drawing.cv2.putText

    def note(picture: np.ndarray, text: str, origin: tuple[int, int], font: int, scale: float, *rest: object) -> object:
        (width, height), below = drawing.cv2.getTextSize(text, font, scale, 1)
        assert origin[0] >= 0
        assert origin[0] + width <= picture.shape[1], f"'{text}' leaves the picture"
        assert origin[1] - height >= 0
        assert origin[1] + below <= picture.shape[0], f"'{text}' is cut below"
        texts[text] = height
        return put(picture, text, origin, font, scale, *rest)

    monkeypatch.setattr(drawing.cv2, "putText", note)
    return texts


def test_one_value_has_one_colour_in_a_calm_and_a_wild_frame() -> None:
    picture, calm = image(), np.full((360, 640), 0.1, np.float32)
    wild = calm.copy()
    wild[:100] = 0.95
    a, b = draw_overlay(picture, calm, legend()), draw_overlay(picture, wild, legend())
    np.testing.assert_array_equal(a[100:], b[100:])
    assert (a[:100] != b[:100]).any(axis=2).mean() > 0.99


def test_blend_covers_more_the_higher_the_score() -> None:
    mixed = blend(np.full(256, 100, np.float32), np.arange(256)).astype(int)
    np.testing.assert_allclose(mixed[255], 0.15 * 100 + 0.85 * colour_table()[255].astype(int), atol=1)
    np.testing.assert_allclose(mixed[0], 0.9 * 100 + 0.1 * colour_table()[0].astype(int), atol=1)


@pytest.mark.parametrize(("height", "width"), [(60, 80), (1024, 2048)])
def test_legend_names_score_unit_range_and_model_at_every_size(texts: dict[str, int], height: int, width: int) -> None:
    picture = draw_overlay(image(height, width), np.zeros((height, width), np.float32), legend("epistemic"))
    assert {"epistemic (share of ln C)", "0", "0.05", ">= 0.1"} <= texts.keys()
    assert any(text.startswith("ABNN, 4 members, 24 draws") for text in texts)
    assert min(texts.values()) >= MINIMUM_TEXT - 1
    said = frame_caption("000120", 4.8)
    draw_overlay(image(height, width), np.zeros((height, width), np.float32), legend(), caption=said)
    assert said == "frame 000120, 0:00:04.800" in texts
    assert picture.shape[1] >= 640
    assert picture.shape[1] % width == 0


def test_legend_bar_shows_the_colours_of_the_map() -> None:
    """The colours that the bar paints are those that values get over mid-grey."""
    grey = np.full((360, 640, 3), 128, np.uint8)
    ramp = np.tile(np.linspace(0, 1, 640, dtype=np.float32), (360, 1))
    picture = draw_overlay(grey, ramp, legend())
    bar = picture[360:].reshape(-1, 3)
    for share in (0.0, 0.5, 1.0):
        colour = picture[10, round(share * 639)].astype(int)
        assert np.abs(bar.astype(int) - colour).max(axis=1).min() <= 2


def test_anomaly_is_outlined_and_named(texts: dict[str, int]) -> None:
    mask = np.zeros((360, 640), bool)
    mask[100:200, 300:400] = True
    flat = np.full((360, 640, 3), 90, np.uint8)
    scores = np.full((360, 640), 0.4, np.float32)
    plain, outlined = draw_overlay(flat, scores, legend()), draw_overlay(flat, scores, legend(), anomaly=mask)
    changed = (plain[:360] != outlined[:360]).any(axis=2)
    assert changed[150, 298:303].any()
    assert not changed[120:180, 310:390].any()
    assert not changed[:80].any()
    assert "outlined: labelled anomaly" in texts


def test_label_of_another_size_is_refused() -> None:
    with pytest.raises(InputError, match="8x4 pixels for an image of 640x360"):
        draw_overlay(image(), np.zeros((360, 640), np.float32), legend(), anomaly=np.zeros((4, 8), bool))


def test_map_of_another_size_is_laid_over_the_whole_image() -> None:
    scores = np.zeros((9, 16), np.float32)
    scores[-1, -1] = 1
    picture = draw_overlay(np.zeros((360, 640, 3), np.uint8), scores, legend())[:360]
    assert (picture[325:, 605:, 0] > 180).all()
    assert (picture[:315, :, 0] < 60).all()


def test_panel_holds_all_tiles_and_the_class_names(texts: dict[str, int]) -> None:
    scores = [(legend(name), np.full((45, 80), 0.2, np.float32)) for name in ("entropy", "aleatoric", "epistemic")]
    prediction = np.zeros((90, 160), np.uint8)
    prediction[:, 40:80], prediction[:, 80:] = 1, 255
    classes = [("road", (128, 64, 128)), ("sky", (70, 130, 180))]
    panel = draw_panel(image(90, 160), prediction, scores, classes=classes)
    said = ("image", "prediction", "road", "sky", "entropy", "epistemic", "share of ln C")
    assert texts.keys() >= set(said)
    assert panel.shape[1] == 3 * 640 + 2 * 6
    # Road, sky, and an id beyond the palette.
    for column, colour in ((10, (128, 64, 128)), (200, (70, 130, 180)), (500, (255, 255, 255))):
        np.testing.assert_array_equal(panel[100, 646 + column], colour)
    # The second row starts with the entropy tile, in the pure colour of 0.2.
    second = panel.shape[0] // 2 + 40
    np.testing.assert_array_equal(panel[second, 100], colour_table()[51])


def test_many_classes_are_cut_to_those_in_the_frame(texts: dict[str, int]) -> None:
    classes = [(f"class {i}", (i, i, i)) for i in range(150)]
    prediction = np.full((90, 160), 137, np.uint8)
    draw_panel(image(90, 160), prediction, [], classes=classes)
    assert "class 137" in texts
    assert any(text.endswith("more classes") for text in texts)
    assert draw_panel(None, None, [(legend(), np.zeros((90, 160), np.float32))]).shape[1] == 640


def test_what_is_flagged_is_outlined_and_named_with_its_threshold(texts: dict[str, int]) -> None:
    values, flat = np.full((360, 640), 0.2, np.float32), np.full((360, 640, 3), 90, np.uint8)
    values[100:200, 300:400] = 0.4  # at the threshold: flagged
    flagged = Legend("entropy", "share of ln C", display_range("entropy"), NOTE, np.float32(0.4))
    anomaly = np.zeros((360, 640), bool)
    anomaly[20:60, 20:60] = True
    plain, outlined = draw_overlay(flat, values, legend()), draw_overlay(flat, values, flagged, anomaly=anomaly)
    assert {"entropy (share of ln C)", "flagged: entropy >= 0.4", "outlined: labelled anomaly"} <= texts.keys()
    changed = (plain[:360] != outlined[:360]).any(axis=2)
    assert changed[150, 298:303].any()
    assert not changed[120:180, 310:390].any()
    for colour, (rows, columns) in (
        (FLAGGED, (slice(95, 205), slice(295, 405))),
        (LABELLED, (slice(15, 65), slice(15, 65))),
    ):
        found = (np.abs(outlined[:360].astype(int) - colour) < 60).all(axis=2)  # lines are smoothed
        assert found[rows, columns].any()
        assert found[rows, columns].sum() == found.sum()
        assert (outlined[360:] == colour).all(axis=2).sum() > 100  # the legend's swatch
    # The mark lies at 0.4 of the bar.
    left, right = round(640 * 0.55), 640 - 12
    marked = np.flatnonzero((outlined[360 : 360 + 20] == FLAGGED).all(axis=2).any(axis=0))
    assert abs(marked.mean() - (left + 0.4 * (right - left))) < 2
    texts.clear()
    draw_panel(flat, None, [(flagged, values), (legend("epistemic"), values)], caption="frame 1")
    assert {"flagged: entropy >= 0.4", "epistemic"} <= texts.keys()


def test_the_light_theme_is_paper_with_dark_ink() -> None:
    values = np.zeros((90, 160), np.float32)
    light = draw_overlay(image(90, 160), values, legend(), caption="frame 1", theme=THEMES["light"])
    panel = draw_panel(None, None, [(legend(), values)], caption="frame 1", theme=THEMES["light"])
    for picture in (light, panel):
        strip = picture[-40:, :300]
        assert (strip == 255).all(axis=2).mean() > 0.7
        assert strip.min() < 110
    dark = draw_overlay(image(90, 160), values, legend(), caption="frame 1")
    np.testing.assert_array_equal(dark[:360], light[:360])
