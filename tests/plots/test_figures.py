"""The figures: what they draw is what the metrics say, everything lies inside the page, and files
come out the same.
"""

from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import precision_recall_curve, roc_curve

from segunc import plots
from segunc.maps.encoding import decode_unit, encode_unit
from segunc.metrics.counting import Counts, detection_curve
from segunc.metrics.prediction import bin_counts, risk_coverage
from segunc.plots import WIDTH, save_figure, thin
from segunc.scores import title_of
from tests.support.oracles import count_keys
from tools.study.scatter import Panel, Point, frontier, scatter_figure

NAMES = ("msp", "entropy", "aleatoric", "epistemic", "deterministic-msp", "deterministic-max-logit")
VALUES = decode_unit(np.arange(65536, dtype=np.uint16))


def pixels(seed: int, number: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    truth = random.random(number) < 0.2
    return encode_unit(
        1 / (1 + np.exp(3 - random.standard_normal(number) - 0.4 * seed * truth))
    ), truth


def counts(seed: int) -> Counts:
    return count_keys(*pixels(seed))


def lines(make: Callable[..., Any], curve: Callable[[Counts], Any]) -> list[Any]:
    return [make(name, curve(counts(i)), i) for i, name in enumerate(NAMES)]


def pr() -> Figure:
    return plots.precision_recall_figure(lines(plots.precision_recall_line, detection_curve), 0.2)


def roc() -> Figure:
    return plots.roc_figure(lines(plots.roc_line, detection_curve))


def risk() -> Figure:
    return plots.risk_coverage_figure(lines(plots.risk_coverage_line, risk_coverage))


def reliable() -> Figure:
    bins = bin_counts(counts(2), 1 - VALUES)
    pixels, correct, confidence = bins[:, bins[0] > 0]
    return plots.reliability_figure(
        plots.Line("my-abnn", confidence / pixels, correct / pixels, 0.1234)
    )


METHODS = (
    "deterministic",
    "fine-tuned, alpha 0",
    "ABNN",
    "ABNN, temperature",
    "MC dropout",
    "variational",
    "SWAG",
)
METHODS += ("Laplace", "SGLD", "SGHMC", "flips and scales", "ensemble of 4")


def scatter() -> Figure:
    points = [
        Point(
            name,
            0.01 + 0.002 * i,
            (0.01, 0.02 + 0.002 * i),
            0.3 - 0.01 * i,
            (0.2, 0.4) if i else None,
            name,
            i,
            i,
        )
        for i, name in enumerate(METHODS)
    ]
    label = "entropy.pooled.aupr\nroad-anomaly, higher is better"
    panels = [
        Panel(label, points, True),
        Panel(label, points[2:], False),
        Panel(label, points[:1], True),
    ]
    return scatter_figure(panels, "test: calibration.ece", False)


def test_named_are_the_points_that_nothing_cheaper_is_as_good_as() -> None:
    """Of a line the last one; a step that a reader cannot see is none."""
    values = {"base": 0.0, "no better": 0.001, "of 2": 0.5, "of 3": 0.9, "worse": 0.8, "best": 1.0}
    points = [
        Point(name, x, None, y, None, "line" if name.startswith("of") else name)
        for x, (name, y) in enumerate(values.items(), start=1)
    ]
    assert [point.name for point in frontier(Panel("", points, True))] == ["base", "of 3", "best"]
    assert [point.name for point in frontier(Panel("", points, False))] == ["base"]


@pytest.mark.parametrize("make", [pr, roc, risk, reliable, scatter])
def test_every_text_lies_inside_the_page_and_is_legible(make: Callable[[], Figure]):
    figure = make()
    assert figure.get_figwidth() == WIDTH * (2 if make is scatter else 1)
    figure.set_dpi(300)  # letters are a little wider in print than on a screen
    figure.draw_without_rendering()
    page = figure.bbox
    texts = [
        text for text in figure.findobj(mpl.text.Text) if text.get_text() and text.get_visible()
    ]
    assert len(texts) > 6
    for text in texts:
        extent = text.get_window_extent()
        tick = text.get_text().startswith(
            ("$", "0", "1", "2")
        )  # ticks beyond the limits exist and are not drawn
        if not tick:
            assert page.padded(0.5).count_contains(extent.corners()) == 4, text
        assert text.get_fontsize() >= 6
    if make in (pr, roc):  # ranges do not follow the data
        assert figure.axes[0].get_xlim() == figure.axes[0].get_ylim() == (-0.01, 1.01)


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
    assert set(map(tuple, np.round(points, 9))) <= set(map(tuple, np.round(expected, 9)))


def test_a_drawn_pr_curve_is_that_of_scikit_learn():
    codes, truth = pixels(3)
    precision, recall, _ = precision_recall_curve(truth, codes)
    first = precision[recall > 0][-1]  # the step of the highest score begins at recall 0
    curve = np.column_stack([recall, precision])
    assert_among(drawn_points(pr(), 3), np.vstack([curve, (0.0, first)]))


def test_a_drawn_roc_curve_is_that_of_scikit_learn():
    codes, truth = pixels(3)
    false_positive, true_positive, _ = roc_curve(truth, codes, drop_intermediate=False)
    assert_among(drawn_points(roc(), 3), np.column_stack([false_positive, true_positive]))


def dots_of(axes: Any) -> list[Any]:
    return [line for line in axes.lines if line.get_marker() != "None"]


def test_points_are_where_they_should_be():
    figure = scatter()
    assert tuple(legend_of(figure)) == METHODS
    dots = dots_of(figure.axes[0])
    places = [(line.get_xdata()[0], line.get_ydata()[0]) for line in dots]
    assert places == [(0.01 + 0.002 * i, 0.3 - 0.01 * i) for i in range(len(METHODS))]
    assert len({(line.get_marker(), line.get_color()) for line in dots}) == len(METHODS)
    assert len(dots_of(figure.axes[1])) == len(METHODS) - 2


def test_points_have_their_intervals():
    # The first has none upwards.
    assert len(scatter().axes[0].lines) == 3 * len(METHODS) - 1


def test_points_that_are_better_than_what_is_cheaper_are_named():
    """In the first panel the first point alone, in the second the last of all, far to the
    right.
    """
    first, second = scatter().axes[:2]
    assert [(text.get_text(), text.get_ha()) for text in first.texts] == [(METHODS[0], "left")]
    assert [text.get_ha() for text in second.texts][-1] == "right"


def test_reliability_draws_accuracy_over_confidence():
    bins = bin_counts(counts(2), 1 - VALUES)
    pixels, correct, confidence = bins[:, bins[0] > 0]
    figure = reliable()
    assert legend_of(figure) == ["my-abnn  0.123", "Perfect calibration"]
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), confidence / pixels)
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), correct / pixels)


@pytest.mark.parametrize("most", [10, 2000])
def test_thinning_keeps_the_ends_and_the_shape(most):
    curve = detection_curve(count_keys(*pixels(4, 60000)))
    x = curve.false_positive_rate
    y = curve.recall
    thin_x, thin_y = thin(x, y, most)
    assert len(thin_x) <= most < len(x)
    for end in (0, -1):
        assert thin_x[end] == x[end]
        assert thin_y[end] == y[end]
    # Along the curve, because a ROC curve has upright parts.
    assert np.abs(np.interp(x + y, thin_x + thin_y, thin_y) - y).max() <= 3 / most


def test_files_are_whole_and_the_same_whatever_the_settings_of_the_process(tmp_path):
    def one_line() -> Figure:
        return plots.roc_figure([plots.roc_line("msp", detection_curve(counts(3)), 0)])

    first = save_figure(one_line(), tmp_path / "first.figure")
    suffixes = ("pdf", "svg", "png")
    assert [path.name for path in first] == [f"first.figure.{suffix}" for suffix in suffixes]
    look = {"lines.linewidth": 9, "font.size": 30, "axes.grid": False, "axes.facecolor": "red"}
    with mpl.rc_context(look):
        second = save_figure(one_line(), tmp_path / "second")
    for path, other in zip(first, second, strict=True):
        assert path.read_bytes() == other.read_bytes()
    assert first[0].read_bytes().startswith(b"%PDF")
    assert b"False positives (share of normal pixels)" in first[1].read_bytes()  # text stays text
    with Image.open(first[2]) as picture:
        assert picture.width == round(WIDTH * 300)
