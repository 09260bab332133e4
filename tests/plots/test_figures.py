"""The figures: what they draw is what the metrics say, everything lies inside the page, and files
come out the same.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from sklearn.metrics import precision_recall_curve, roc_curve

from segunc import plots
from segunc.core.errors import InputError
from segunc.evaluation.parts import Pooled
from segunc.figure_style import WIDTH
from segunc.maps.encoding import decode_unit, encode_unit
from segunc.metrics.counting import Counts, detection_curve
from segunc.metrics.prediction import bin_counts, risk_coverage
from segunc.plots import save_figure, thin
from segunc.scores import title_of
from tests.support.oracles import count_keys
from tools.study.scatter import Panel, Point, frontier, scatter_figure

NAMES = (
    "msp",
    "entropy",
    "aleatoric",
    "epistemic",
    "deterministic-msp",
    "deterministic-max-logit",
)
VALUES = decode_unit(np.arange(65536, dtype=np.uint16))


def pixels(seed: int, number: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    truth = random.random(number) < 0.2
    negative_logits = 3 - random.standard_normal(number) - 0.4 * seed * truth
    scores = 1 / (1 + np.exp(negative_logits))
    return encode_unit(scores), truth


def counts(seed: int) -> Counts:
    codes, truth = pixels(seed)
    return count_keys(codes, truth)


def lines(make: Callable[..., Any], curve: Callable[[Counts], Any]) -> list[Any]:
    return [make(name, curve(counts(i)), i) for i, name in enumerate(NAMES)]


def pr() -> Figure:
    of_scores = lines(plots.precision_recall_line, detection_curve)
    return plots.precision_recall_figure(of_scores, 0.2)


def roc() -> Figure:
    return plots.roc_figure(lines(plots.roc_line, detection_curve))


def risk() -> Figure:
    return plots.risk_coverage_figure(lines(plots.risk_coverage_line, risk_coverage))


def reliable() -> Figure:
    bins = bin_counts(counts(2), 1 - VALUES)
    pixels, correct, confidence = bins[:, bins[0] > 0]
    line = plots.Line("my-abnn", confidence / pixels, correct / pixels, 0.1234)
    return plots.reliability_figure(line)


METHODS = (
    "deterministic",
    "fine-tuned, alpha 0",
    "ABNN",
    "ABNN, temperature",
    "MC dropout",
    "variational",
    "SWAG",
    "Laplace",
    "SGLD",
    "SGHMC",
    "flips and scales",
    "ensemble of 4",
)


def point_of(method: str, number: int) -> Point:
    """Return a point; that of the first method has no interval upwards."""
    return Point(
        method,
        0.01 + 0.002 * number,
        (0.01, 0.02 + 0.002 * number),
        0.3 - 0.01 * number,
        (0.2, 0.4) if number else None,
        method,
        number,
        number,
    )


def scatter() -> Figure:
    points = [point_of(method, number) for number, method in enumerate(METHODS)]
    label = "entropy.pooled.aupr\nroad-anomaly, higher is better"
    panels = [
        Panel(label, points, True),
        Panel(label, points[2:], False),
        Panel(label, points[:1], True),
    ]
    return scatter_figure(panels, "test: calibration.ece", False)


def test_named_are_the_points_that_nothing_cheaper_is_as_good_as() -> None:
    """Of a line the last one; a step that a reader cannot see is none."""
    points = [
        Point("base", 1, None, 0.0, None, "base"),
        Point("no better", 2, None, 0.001, None, "no better"),
        Point("of 2", 3, None, 0.5, None, "line"),
        Point("of 3", 4, None, 0.9, None, "line"),
        Point("worse", 5, None, 0.8, None, "worse"),
        Point("best", 6, None, 1.0, None, "best"),
    ]
    where_higher_is_better = frontier(Panel("", points, True))
    assert [point.name for point in where_higher_is_better] == ["base", "of 3", "best"]
    where_lower_is_better = frontier(Panel("", points, False))
    assert [point.name for point in where_lower_is_better] == ["base"]


EVERY_FIGURE = pytest.mark.parametrize("make", [pr, roc, risk, reliable, scatter])


def texts_of(figure: Figure) -> list[Any]:
    """Return what is written in a figure as it is printed."""
    figure.set_dpi(300)  # letters are a little wider in print than on a screen
    figure.draw_without_rendering()
    texts = figure.findobj(mpl.text.Text)
    return [text for text in texts if text.get_text() and text.get_visible()]


def test_figures_have_the_width_of_a_column():
    for make in (pr, roc, risk, reliable):
        assert make().get_figwidth() == WIDTH
    assert scatter().get_figwidth() == 2 * WIDTH


@EVERY_FIGURE
def test_every_text_lies_inside_the_page(make: Callable[[], Figure]):
    figure = make()
    texts = texts_of(figure)
    assert len(texts) > 6
    page = figure.bbox.padded(0.5)
    for text in texts:
        # Ticks beyond the limits exist and are not drawn.
        is_tick = text.get_text().startswith(("$", "0", "1", "2"))
        if not is_tick:
            corners = text.get_window_extent().corners()
            assert page.count_contains(corners) == 4, text


@EVERY_FIGURE
def test_every_text_is_legible(make: Callable[[], Figure]):
    for text in texts_of(make()):
        assert text.get_fontsize() >= 6


@pytest.mark.parametrize("make", [pr, roc])
def test_ranges_do_not_follow_the_data(make: Callable[[], Figure]):
    axes = make().axes[0]
    assert axes.get_xlim() == (-0.01, 1.01)
    assert axes.get_ylim() == (-0.01, 1.01)


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("make", [pr, roc, risk, reliable])
def test_titles_and_axes_are_words_with_units(make: Callable[[], Figure]):
    figure = make()
    axes = figure.axes[0]
    assert axes.get_title().endswith("all frames")
    for label in (axes.get_xlabel(), axes.get_ylabel()):
        assert label[0].isupper()
        assert "(" in label


@pytest.mark.parametrize("make", [pr, roc, risk])
def test_legends_have_the_titles_of_scores(make: Callable[[], Figure]):
    shown = legend_of(make())
    titles = [text.rpartition("  ")[0] for text in shown[: len(NAMES)]]
    assert titles == [title_of(name) for name in NAMES]
    for text in shown:
        assert not any(name in text for name in ("msp", "deterministic", "-"))


def drawn_points(figure: Figure, number: int) -> np.ndarray:
    """Return the points ``[P, 2]`` of a line of a figure."""
    return np.column_stack(figure.axes[0].lines[number].get_data())


def assert_among(points: np.ndarray, expected: np.ndarray) -> None:
    """Check that more than a thousand points are drawn, and that each is one of a curve."""
    assert len(points) > 1000
    drawn = {tuple(point) for point in np.round(points, 9)}
    curve = {tuple(point) for point in np.round(expected, 9)}
    assert drawn <= curve


def test_a_drawn_pr_curve_is_that_of_scikit_learn():
    codes, truth = pixels(3)
    precision, recall, _ = precision_recall_curve(truth, codes)
    first = precision[recall > 0][-1]  # the step of the highest score begins at recall 0
    curve = np.column_stack([recall, precision])
    assert_among(drawn_points(pr(), 3), np.vstack([curve, (0.0, first)]))


def test_a_drawn_roc_curve_is_that_of_scikit_learn():
    codes, truth = pixels(3)
    false_positive, true_positive, _ = roc_curve(truth, codes, drop_intermediate=False)
    curve = np.column_stack([false_positive, true_positive])
    assert_among(drawn_points(roc(), 3), curve)


def dots_of(axes: Any) -> list[Any]:
    return [line for line in axes.lines if line.get_marker() != "None"]


def test_points_are_named_in_the_legend():
    assert tuple(legend_of(scatter())) == METHODS


def test_points_are_where_they_should_be():
    dots = dots_of(scatter().axes[0])
    for number, dot in enumerate(dots):
        assert dot.get_xdata()[0] == 0.01 + 0.002 * number
        assert dot.get_ydata()[0] == 0.3 - 0.01 * number
    assert len(dots) == len(METHODS)


def test_each_point_looks_different():
    dots = dots_of(scatter().axes[0])
    looks = {(dot.get_marker(), dot.get_color()) for dot in dots}
    assert len(looks) == len(METHODS)


def test_each_panel_has_its_points():
    assert len(dots_of(scatter().axes[1])) == len(METHODS) - 2


def test_points_have_their_intervals():
    # The first has none upwards.
    assert len(scatter().axes[0].lines) == 3 * len(METHODS) - 1


def test_the_only_point_that_nothing_cheaper_is_as_good_as_is_named():
    (text,) = scatter().axes[0].texts
    assert text.get_text() == METHODS[0]
    assert text.get_ha() == "left"


def test_the_name_of_a_point_far_to_the_right_ends_at_it():
    last = scatter().axes[1].texts[-1]
    assert last.get_ha() == "right"


def test_reliability_draws_accuracy_over_confidence():
    bins = bin_counts(counts(2), 1 - VALUES)
    pixels, correct, confidence = bins[:, bins[0] > 0]
    figure = reliable()
    assert legend_of(figure) == ["my-abnn  0.123", "Perfect calibration"]
    line = figure.axes[0].lines[0]
    np.testing.assert_array_equal(line.get_xdata(), confidence / pixels)
    np.testing.assert_array_equal(line.get_ydata(), correct / pixels)


@pytest.mark.parametrize("most", [10, 2000])
def test_thinning_keeps_the_ends_and_the_shape(most):
    codes, truth = pixels(4, 60000)
    curve = detection_curve(count_keys(codes, truth))
    x = curve.false_positive_rate
    y = curve.recall
    thin_x, thin_y = thin(x, y, most)
    assert len(thin_x) <= most < len(x)
    for end in (0, -1):
        assert thin_x[end] == x[end]
        assert thin_y[end] == y[end]
    # Along the curve, because a ROC curve has upright parts.
    on_thin_curve = np.interp(x + y, thin_x + thin_y, thin_y)
    assert np.abs(on_thin_curve - y).max() <= 3 / most


def one_line() -> Figure:
    line = plots.roc_line("msp", detection_curve(counts(3)), 0)
    return plots.roc_figure([line])


def test_a_figure_is_saved_in_three_formats(tmp_path):
    saved = save_figure(one_line(), tmp_path / "first.figure")
    names = ["first.figure.pdf", "first.figure.svg", "first.figure.png"]
    assert [path.name for path in saved] == names
    pdf, svg, png = saved
    assert pdf.read_bytes().startswith(b"%PDF")
    # Text stays text.
    assert b"False positives (share of normal pixels)" in svg.read_bytes()
    with Image.open(png) as picture:
        assert picture.width == round(WIDTH * 300)


def test_files_are_the_same_whatever_the_settings_of_the_process(tmp_path):
    first = save_figure(one_line(), tmp_path / "first.figure")
    look = {
        "lines.linewidth": 9,
        "font.size": 30,
        "axes.grid": False,
        "axes.facecolor": "red",
    }
    with mpl.rc_context(look):
        second = save_figure(one_line(), tmp_path / "second")
    for path, other in zip(first, second, strict=True):
        assert path.read_bytes() == other.read_bytes()


def gatherer_of(scores: dict[str, Any]) -> Any:
    """Return what was counted: of each score the pixels of all frames together, and no more."""
    return SimpleNamespace(counts=lambda kind: scores if kind is Pooled else {})


def test_scores_without_anomalous_pixels_have_no_curve() -> None:
    codes = np.array([0, 1, 2], np.uint16)
    normal = count_keys(codes, np.zeros(3, bool))
    drawn = plots.Plots()
    plots._add_detection(drawn, gatherer_of({"msp": normal}))
    assert drawn.figures == {}


def test_a_result_without_bins_has_no_reliability() -> None:
    drawn = plots.Plots()
    plots._add_reliability(drawn, {"calibration": {}}, "model")
    assert drawn.figures == {}


def test_without_a_figure_nothing_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "plots"
    with pytest.raises(InputError, match=r"^there is nothing to draw: `plots` needs class labels"):
        plots.write_plots(gatherer_of({}), {"calibration": {}}, folder, "model")
    assert not folder.exists()


def test_an_axis_of_frames_has_whole_numbers() -> None:
    figure = plots.monitor_figure(np.linspace(0, 2.4, 18), 2.0, "mean of entropy", "those before")
    ticks = figure.axes[0].get_xticks()
    np.testing.assert_array_equal(ticks, np.round(ticks))
    figure.clear()


@pytest.mark.parametrize("against", ["those of the calibration", "those before them"])
def test_a_figure_of_the_monitor_says_what_frames_are_compared_with(against: str) -> None:
    figure = plots.monitor_figure(np.linspace(0, 2.4, 18), 2.0, "mean of entropy", against)
    texts = [text.get_text() for text in figure.findobj(Text)]
    assert f"Are the frames like {against}?" in texts
    figure.clear()
