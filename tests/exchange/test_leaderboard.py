"""Places among rows of the public SegmentMeIfYouCan board: the first fields of three of its published rows."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from segunc.core.errors import InputError
from segunc.evaluation.compare import load_results
from segunc.exchange.leaderboard import TRACKS, board_csv, format_board, load_board, place_results
from tests.evaluation.evaluations import COUNTS, write_result

ANOMALY = TRACKS["anomaly"]
# AUPR, FPR95, sIoU gt, PPV and mean F1 of the public file (assets/leaderboard.json of
# https://github.com/SegmentMeIfYouCan/segment-me-if-you-can).
PUBLISHED = {
    "Maximum Softmax": (0.2796783899, 0.7204526036, 0.1547765043, 0.1528669815, 0.0536938561),
    "Ensemble": (0.1766077673, 0.9105551914, 0.1643696327, 0.2076572893, 0.0338511014),
    "DenseHybrid ": (0.7796442802, 0.0980984958, 0.5417447033, 0.2413366036, 0.3108403896),
}


def row(method: str, numbers: tuple[float, ...], track: str = "anomaly") -> dict[str, Any]:
    return dict(zip(TRACKS[track].fields.values(), numbers, strict=True)) | {"method": method, "requires_ood": False}


@pytest.fixture
def board(tmp_path: Path) -> Path:
    path = tmp_path / "leaderboard.json"
    path.write_text(json.dumps({"anomaly_track": [row(*item) for item in PUBLISHED.items()], "obstacle_track": []}))
    return path


def result(folder: Path, *, frames: int = 100, aupr: float | None = 0.5) -> Path:
    pixels = {"aupr": aupr, "fpr95": 0.72, "auroc": 0.9}
    segments = {"smiyc-anomaly": {"siou_gt": 0.16, "ppv": 0.3, "mean_f1": 0.04}}
    scores = {"entropy": {"smiyc": pixels, "components": segments}, "msp": {"pooled": {"aupr": 0.99}}}
    more = {"counts": COUNTS | {"anomaly_frames": frames}, "intervals": {"scores.entropy.smiyc.aupr": (0.45, 0.55)}}
    return write_result(folder / "mine.json", {}, scores=scores, **more)


def test_the_fields_are_those_of_the_public_file() -> None:
    pixels, segments = "AnomalyTrack-test-PixBinaryClass", "AnomalyTrack-test-SegEval-AnomalyTrack"
    expected = [f"{pixels}-{field}" for field in ("area_PRC", "tpr95_fpr")]
    expected += [f"{segments}-{field}" for field in ("sIoU_gt", "prec_pred", "f1_mean")]
    assert list(ANOMALY.fields.values()) == expected
    assert TRACKS["laf-no-known"].fields["PPV"] == "LostAndFound-testNoKnown-SegEval-ObstacleTrack-prec_pred"
    assert TRACKS["obstacle"].number_path("PPV", "s") == ("scores", "s", "components", "smiyc-obstacle", "ppv")


def test_a_result_stands_where_its_aupr_puts_it(tmp_path: Path, board: Path) -> None:
    rows = place_results(load_board(board, ANOMALY), load_results([result(tmp_path)]), ANOMALY)
    assert [row.method for row in rows] == ["DenseHybrid", "mine:entropy", "Maximum Softmax", "Ensemble"]
    assert rows[1].places == {"AUPR": 2, "FPR95": 2, "sIoU gt": 3, "PPV": 1, "mean F1": 3}
    text = format_board(rows, load_results([result(tmp_path)]), ANOMALY)
    line = next(line for line in text.splitlines() if "mine" in line)
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == ["**mine:entropy**", ".500 [.450, .550] (2)", ".720 (2)", ".160 (3)", ".300 (1)", ".040 (3)"]
    assert "| .780 |" in " ".join(text.split())
    assert "the same" in text


def test_equal_numbers_share_a_place_and_results_of_other_frames_are_not_comparable(
    tmp_path: Path, board: Path
) -> None:
    results = load_results([result(tmp_path, frames=10, aupr=PUBLISHED["Maximum Softmax"][0])])
    rows = place_results(load_board(board, ANOMALY), results, ANOMALY)
    assert next(row.places["AUPR"] for row in rows if row.places) == 2
    text = format_board(rows, results, ANOMALY)
    assert "100 frames of AnomalyTrack-test, mine is of 10 frames: not comparable." in text


def test_numbers_that_lack_are_dashes_and_stand_last(tmp_path: Path, board: Path) -> None:
    content = json.loads(board.read_text())
    # The public file holds a percentage among its fractions, and rows without some fields.
    content["anomaly_track"][0][ANOMALY.fields["mean F1"]] = 50
    del content["anomaly_track"][1][ANOMALY.fields["AUPR"]]
    board.write_text(json.dumps(content["anomaly_track"]))  # one table alone is accepted too
    results = load_results([result(tmp_path, aupr=None)])
    rows = place_results(load_board(board, ANOMALY), results, ANOMALY)
    assert [row.method for row in rows] == ["DenseHybrid", "Maximum Softmax", "Ensemble", "mine:entropy"]
    assert rows[-1].places["mean F1"] == 2
    assert "AUPR" not in rows[-1].places
    lines = format_board(rows, results, ANOMALY).splitlines()
    assert [line.count("—") for line in lines[2:6]] == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not valid JSON"),
        ('{"other": []}', "has no table 'anomaly_track'"),
        ('{"anomaly_track": {}}', "has no table 'anomaly_track'"),
        ("[]", "has no table"),
        ("3", "has no table"),
        ('[{"AP": 0.3}]', "names no method"),
        ('[{"method": "x", "AP": 0.3}]', "no row has AnomalyTrack-test-PixBinaryClass-area_PRC"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "board.json"
    path.write_text(content)
    with pytest.raises(InputError, match=rf"board\.json.*{said}"):
        load_board(path, ANOMALY)
    with pytest.raises(InputError, match="cannot be read"):
        load_board(tmp_path / "nowhere.json", ANOMALY)


def test_a_result_of_another_protocol_has_no_place(tmp_path: Path, board: Path) -> None:
    results = load_results([result(tmp_path)])
    with pytest.raises(InputError, match="no result has numbers of the protocol 'smiyc'"):
        place_results(load_board(board, ANOMALY), results, ANOMALY, ["msp"])


def test_the_csv_holds_every_row(tmp_path: Path, board: Path) -> None:
    rows = place_results(load_board(board, ANOMALY), load_results([result(tmp_path)]), ANOMALY)
    lines = list(csv.DictReader(io.StringIO(board_csv(rows, ANOMALY))))
    assert [line["ours"] for line in lines] == ["0", "1", "0", "0"]
    assert lines[1]["AUPR place"] == "2"
    assert (lines[1]["AUPR low"], lines[1]["AUPR high"]) == ("0.45", "0.55")
    assert lines[2]["AUPR"] == str(PUBLISHED["Maximum Softmax"][0])
