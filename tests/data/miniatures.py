"""Miniature data sets, a few small frames in each of the layouts that the package reads, drawn from
the published file listings.

Each form is a list of frames as (image, label, values of the label); ``BESIDE`` are files that lie
among them and belong to no frame.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.data.labels import label_map

SIZE = (48, 64)


def write_frame(
    image: Path, label: Path, values: list[int], *, seed: int = 0, size: tuple[int, int] = SIZE
) -> None:
    """A noisy picture and a label of vertical stripes of some raw values."""
    height, width = size
    picture = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    stripe_of_column = np.arange(width) * len(values) // width
    row: npt.NDArray[np.uint8] = np.array(values, np.uint8)[stripe_of_column]
    for path in (image, label):
        path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(image), picture)
    assert cv2.imwrite(str(label), np.tile(row, (height, 1)))


def colour_label(label: Path, labels: str) -> None:
    """Write a label file of ids again in the colours of a label map."""
    palette = np.zeros((256, 3), np.uint8)
    for (red, green, blue), raw in (label_map(labels).colours or {}).items():
        palette[raw] = blue, green, red
    ids = cv2.imread(str(label), cv2.IMREAD_UNCHANGED)
    assert cv2.imwrite(str(label), palette[ids])


def _split_frames(root: Path, splits: dict[str, int], image: str, label: str, labels: str) -> Path:
    values = sorted(label_map(labels).raw_to_train)
    for split, frames in splits.items():
        for i in range(frames):
            write_frame(
                root / image.format(split, i), root / label.format(split, i), values, seed=i
            )
    return root


def cityscapes(root: Path, splits: dict[str, int], name: str = "cityscapes") -> Path:
    stem = "ulm/ulm_{:06d}_000019"
    return _split_frames(
        root,
        splits,
        f"leftImg8bit/{{}}/{stem}_leftImg8bit.png",
        f"gtFine/{{}}/{stem}_gtFine_labelIds.png",
        name,
    )


def camvid(root: Path, splits: dict[str, int]) -> Path:
    return _split_frames(
        root, splits, "{}/0001TP_{:06d}.png", "{}annot/0001TP_{:06d}.png", "camvid"
    )


def folder(root: Path, labels: str, frames: int, values: list[int]) -> Path:
    for i in range(frames):
        write_frame(
            root / "images" / f"scene{i}.jpg", root / labels / f"scene{i}.png", values, seed=i
        )
    return root


Frame = tuple[str, str, Sequence[int]]

TRAIN_IDS = (*range(19), 255)
BINARY = (0, 1, 255)


def _mapillary(classes: int) -> list[Frame]:
    """Each class in one frame of two, as no frame of a miniature is wide enough for all."""
    return [
        ("training", "dojFUiCN6nSetZGUwnPthw", range(classes // 2)),
        ("training", "M2kh294N9c72sICO990Uew", range(classes // 2, classes)),
        ("validation", "_7zhntDU5r1Emk", (0, 65)),
    ]


def _frames(image: str, label: str, *rows: tuple[Any, ...]) -> list[Frame]:
    """Frames whose paths are made of the words of a row, which ends in the values of the label."""
    return [(image.format(*words), label.format(*words), values) for *words, values in rows]


_ACDC = [
    (f"{condition}/{place}", TRAIN_IDS)
    for place in ("train/GOPR0475/GOPR0475_frame_000041", "val/GP010476/GP010476_frame_000063")
    for condition in ("fog", "night", "rain", "snow")
]
_A2D2 = [
    ("20180807_145028", "20180807145028", "frontcenter_000000091", range(28)),
    ("20180807_145028", "20180807145028", "frontcenter_000000135", range(28, 55)),
    ("20181008_095521", "20181008095521", "frontcenter_000055012", (44, 50, 51)),
    ("20181016_125231", "20181016125231", "frontcenter_000000079", (0, 50)),
]
_KITTI = [(f"{number}_10", range(34)) for number in ("000000", "000159", "000160")]
_CAMVID = [
    ("train", "0016E5_00390", (*range(10), 11)),
    ("train", "0016E5_00391", (*range(10), 11)),
    ("train", "0016E5_00392", (*range(10), 11)),
    ("train", "0016E5_00393", (*range(10), 11)),
    ("train", "0016E5_00394", (*range(10), 11)),
    ("train", "0001TP_006690", range(12)),
    ("val", "0016E5_07959", range(12)),
    ("test", "0001TP_008550", range(12)),
    ("test", "Seq05VD_f00000", (*range(10), 11)),
]
_BDD = [
    ("train", "0004a4c0-d4dff0ad", (*range(16), 255)),
    ("train", "00054602-3bf57337", TRAIN_IDS),
    # An anomaly in one form of BDD-Anomaly, a known class in the other.
    ("train", "00067cfb-e535423e", (0, 18, 255)),
    ("val", "7d128593-0ccfea4c", (*range(16), 255)),
    ("val", "7d15b18b-1e0d6e3f", (0, 17, 255)),
]
_BDD_FORMS = (
    _frames("images/10k/{}/{}.jpg", "labels/sem_seg/masks/{}/{}.png", *_BDD),
    _frames("seg/images/{}/{}.jpg", "seg/labels/{}/{}_train_id.png", *_BDD),
)
_IDD = [
    ("train/201/frame0029", "png", (*range(26), 255)),
    ("train/404/0000531", "jpg", (0, 25, 255)),  # of the second part
    ("val/119/frame2889", "png", (*range(26), 255)),
]

_MUAD = [
    ("train", "001246", (*range(12), 13, 14, 15, 21)),
    ("val", "001915", (*range(12), 13, 14, 15, 21)),
    ("test_id", "000001", (*range(12), 13, 14, 15, 21)),
    ("test_ood", "000001", (*range(21), 255)),
    ("test_ood", "000002", (*range(21), 255)),
]
_LOST_AND_FOUND = [
    ("train", "01_Hanns_Klemm_Str_45", "000000_000080", (0, 1, 2)),
    ("test", "02_Hanns_Klemm_Str_44", "000000_000020", (0, 1, 2, 31, 43)),
    ("test", "02_Hanns_Klemm_Str_44", "000000_000030", (0,)),
    ("test", "15_Rechbergstr_Deckenpfronn", "000000_000010", (0, 1, 26)),
    ("test", "10_Schlossberg_9", "000004_000050", (0, 1, 23)),
    ("test", "10_Schlossberg_9", "000003_000050", (0, 1, 9)),
]
_FISHYSCAPES = [
    ("0000", "04_Maurener_Weg_8", "000000_000030", BINARY),
    ("0001", "13_Elly_Beinhorn_Str", "000003_000260", BINARY),
]
_GOOSE = "2023-05-24_neubiberg_cloudy/2023-05-24_neubiberg_cloudy__{}"
_STREETS = [
    ("train", "training/t1-3/0", range(1, 14)),
    ("train", "training/t1-3/1", range(1, 14)),
    ("train", "validation/t4/0", range(1, 14)),
    ("test", "test/t5/0", range(1, 15)),
    ("test", "test/t6/0", range(1, 15)),
]
_ROAD_ANOMALY = ("animals01_Guiguinto_railway_station_Calves", "cones02_Broadmoor_Manhole_Cones")


def _masks(
    folder: str, suffix: str, *names: str, values: Sequence[int] = BINARY, ending: str = ""
) -> list[list[Frame]]:
    """``FOLDER/images`` and ``FOLDER/labels_masks``, and the same two folders without the one
    above.
    """
    forms = [
        (f"{top}images/{{}}.{suffix}", f"{top}labels_masks/{{}}{ending}.png")
        for top in (f"{folder}/", "")
    ]
    return [_frames(image, label, *((name, values) for name in names)) for image, label in forms]


_TOY = [
    (split, "elsewhere/elsewhere_000000_000019") for split in ("train", "val", "test", "anomaly")
]
_TOY_IDS = (23, 11, 21, 7, 8, 26, 24, 17, 20, 0)

FORMS: dict[str, Sequence[list[Frame]]] = {
    "cityscapes": [
        _frames(
            "leftImg8bit/{}_leftImg8bit.png",
            "gtFine/{}_gtFine_labelIds.png",
            ("train/aachen/aachen_000000_000019", range(34)),
            ("train/bochum/bochum_000000_000313", range(34)),
            ("val/munster/munster_000000_000019", range(34)),
        )
    ],
    "acdc": [_frames("rgb_anon/{}_rgb_anon.png", "gt/{}_gt_labelTrainIds.png", *_ACDC)],
    "a2d2": [
        _frames(
            f"{top}{{0}}/camera/cam_front_center/{{1}}_camera_{{2}}.png",
            f"{top}{{0}}/label/cam_front_center/{{1}}_label_{{2}}.png",
            *_A2D2,
        )
        for top in ("", "camera_lidar_semantic/")
    ],
    "camvid": [_frames("{}/{}.png", "{}annot/{}.png", *_CAMVID)],
    "bdd100k": _BDD_FORMS,
    "bdd-anomaly": _BDD_FORMS,
    "bdd-anomaly-two-class": _BDD_FORMS,
    "dark-zurich": [
        _frames(
            "rgb_anon/val/night/{0}/{0}_frame_{1}_rgb_anon.png",
            "gt/val/night/{0}/{0}_frame_{1}_gt_labelTrainIds.png",
            ("GOPR0356", "000321", TRAIN_IDS),
        )
    ],
    "fishyscapes-laf": [
        _frames(
            "leftImg8bit/train/{1}/{1}_{2}_leftImg8bit.png",
            "fishyscapes_lostandfound/{0}_{1}_{2}_labels.png",
            *_FISHYSCAPES,
        )
    ],
    "fishyscapes-static": [
        _frames(
            "fs_static_images/{}_rgb.png",
            "fs_val_v3/{}_labels.png",
            ("0003_frankfurt_000001_034047", BINARY),
        )
    ],
    "goose": [
        _frames(
            f"images/{{}}/{_GOOSE}_windshield_vis.png",
            f"labels/{{}}/{_GOOSE}_labelids.png",
            ("train", "0012_1684933211", range(64)),
            ("val", "0018_1677754323", (0, 23, 50)),
        )
    ],
    "idd-lite": [
        _frames(
            "leftImg8bit/{}_image.jpg",
            "gtFine/{}_label.png",
            ("train/0/024541", range(8 - 1)),
            ("train/439/frame20476", (0, 4, 255)),
            ("val/89/946749", (3, 6)),
        )
    ],
    "idd": [_frames("leftImg8bit/{}_leftImg8bit.{}", "gtFine/{}_gtFine_labellevel3Ids.png", *_IDD)],
    "kitti-semantics": [_frames("training/image_2/{}.png", "training/semantic/{}.png", *_KITTI)],
    "lost-and-found": [
        _frames(
            "leftImg8bit/{0}/{1}/{1}_{2}_leftImg8bit.png",
            "gtCoarse/{0}/{1}/{1}_{2}_gtCoarse_labelIds.png",
            *_LOST_AND_FOUND,
        )
    ],
    "mapillary-v2": [_frames("{0}/images/{1}.jpg", "{0}/v2.0/labels/{1}.png", *_mapillary(124))],
    "muad": [_frames("{}/leftImg8bit/{}_leftImg8bit.png", "{}/leftLabel/{}_leftLabel.png", *_MUAD)],
    "railsem19": [
        _frames(
            f"{top}jpgs/rs19_val/{{}}.jpg",
            f"{top}uint8/rs19_val/{{}}.png",
            ("rs00001", TRAIN_IDS),
            ("rs06999", (0, 12, 17)),
            ("rs07000", (12, 255)),
        )
        for top in ("", "rs19_val/")
    ],
    "smiyc-anomaly": _masks(
        "dataset_AnomalyTrack",
        "jpg",
        "validation0000",
        "validation0009",
        ending="_labels_semantic",
    ),
    "smiyc-obstacle": _masks(
        "dataset_ObstacleTrack",
        "webp",
        "validation_1",
        "validation_18",
        ending="_labels_semantic",
    ),
    "wilddash2": [
        _frames("images/{}.jpg", label, ("aa0000", range(39)), ("aa0001", (7, 23, 31)))
        for label in ("semantic/{}_labelIds.png", "labels/{}.png")
    ],
    "mapillary": [
        _frames("{0}/images/{1}.jpg", f"{{0}}/{folder}/{{1}}.png", *_mapillary(66))
        for folder in ("v1.2/labels", "labels")
    ],
    "streethazards": [
        _frames(f"{archive}images/{{1}}.png", f"{archive}annotations/{{1}}.png", *_STREETS)
        for archive in ("{0}/", "")
    ],
    "road-anomaly": [
        _frames(image, label, *((name, (0, 2)) for name in _ROAD_ANOMALY))
        for image, label in (
            ("frames/{}.jpg", "frames/{}.labels/labels_semantic.png"),
            ("images/{}.jpg", "labels_masks/{}.png"),
            ("images/{}.jpg", "labels/{}.png"),
        )
    ],
    "course-road-anomaly-21": _masks("RoadAnomaly21", "png", "0", "1"),
    "course-road-obstacle-21": _masks("RoadObsticle21", "webp", "0", "1"),
    "course-fs-lost-and-found": _masks("FS_LostFound_full", "png", "0", "1"),
    "course-fs-static": _masks("fs_static", "jpg", "0", "1"),
    "course-road-anomaly": _masks("RoadAnomaly", "jpg", "0", "1", values=(0, 2)),
    "toy": [
        _frames(
            "leftImg8bit/{}/{}_leftImg8bit.png",
            "gtFine/{}/{}_gtFine_labelIds.png",
            *((*row, _TOY_IDS) for row in _TOY),
        )
    ],
    "toy-anomaly": [
        _frames(
            "leftImg8bit/{}/{}_leftImg8bit.png", "gtAnomaly/{}/{}_anomaly.png", (*_TOY[-1], BINARY)
        )
    ],
    "folder": [
        _masks("test", "jpg", "a", "b")[0],
        _frames("test/images/{}.webp", "test/labels/{}.png", ("a", BINARY), ("b", BINARY)),
    ],
    "folder-255": [
        _masks("test", "jpg", "a", values=(0, 255))[0],
        _frames("test/images/{}.webp", "test/labels/{}.png", ("a", (0, 255))),
    ],
}
"""Every data set by name, in each of the forms that its entry reads."""
IN_COLOUR = {"a2d2": "a2d2"}
"""Data sets whose labels are published in colour, with their label maps."""

_OTHERS = ("color.png", "instanceIds.png", "labelTrainIds.png", "polygons.json")
BESIDE = {
    "cityscapes": [f"gtFine/train/aachen/aachen_000000_000019_gtFine_{kind}" for kind in _OTHERS],
    "acdc": [
        "gt/fog/train/GOPR0475/GOPR0475_frame_000041_gt_labelIds.png",
        "gt/fog/train/GOPR0475/GOPR0475_frame_000041_gt_labelColor.png",
        "rgb_anon/fog/train_ref/GOPR0475/GOPR0475_frame_000041_rgb_ref_anon.png",
    ],
    "a2d2": [
        "cams_lidars.json",
        "class_list.json",
        "20180807_145028/lidar/cam_front_center/20180807145028_lidar_frontcenter_000000091.npz",
        "20180807_145028/camera/cam_front_center/20180807145028_camera_frontcenter_000000091.json",
    ],
    "dark-zurich": [
        "gt/val/night/GOPR0356/GOPR0356_frame_000321_gt_labelColor.png",
        "rgb_anon/val_ref/day/GOPR0356_ref/GOPR0356_frame_000321_ref_rgb_anon.png",
    ],
    "fishyscapes-laf": [  # Lost and Found has many more frames.
        "leftImg8bit/train/04_Maurener_Weg_8/04_Maurener_Weg_8_000000_000040_leftImg8bit.png"
    ],
    "goose": [
        "goose_label_mapping.csv",
        f"images/train/{_GOOSE.format('0012_1684933211')}_windshield_nir.png",
        f"labels/train/{_GOOSE.format('0012_1684933211')}_color.png",
        f"labels/train/{_GOOSE.format('0012_1684933211')}_instanceids.png",
        "images/test/2022-07-07_campus/a_windshield_vis.png",
    ],
    "kitti-semantics": [
        # Of the scene flow benchmark: the second frame of a pair has no label.
        "training/image_2/000000_11.png",
        "training/semantic_rgb/000000_10.png",
        "training/instance/000000_10.png",
        "testing/image_2/000000_10.png",
    ],
    "lost-and-found": [
        f"gtCoarse/test/02_Hanns_Klemm_Str_44/02_Hanns_Klemm_Str_44_000000_000020_gtCoarse_{kind}"
        for kind in _OTHERS
    ],
    "smiyc-anomaly": [
        "dataset_AnomalyTrack/images/zebra0000.jpg",  # A test frame, whose label is not published.
        "dataset_AnomalyTrack/labels_masks/validation0000_labels_semantic_color.png",
    ],
    "smiyc-obstacle": [
        "dataset_ObstacleTrack/images/paving_axe_2.webp",
        "dataset_ObstacleTrack/images/validation_19.webp",
    ],
    "railsem19": ["rs19-config.json", "jsons/rs19_val/rs00001.json"],
    "wilddash2": ["wilddash2-meta.json", "panoptic.json", "panoptic/aa0000.png"],
    "idd-lite": ["gtFine/train/0/024541_inst_label.png"],
    "idd": [
        f"gtFine/train/201/frame0029_gtFine_{kind}.png"
        for kind in ("labelids", "instancelevel3Ids")
    ],
    "mapillary": ["training/v2.0/labels/dojFUiCN6nSetZGUwnPthw.png", "testing/images/a.jpg"],
    "road-anomaly": [
        "frame_list.json",
        f"frames/{_ROAD_ANOMALY[0]}.labels/labels_semantic_color.png",
    ],
}
"""Files that lie beside those of the first form."""


def draw_miniature(name: str, root: Path, form: int = 0) -> Path:
    """A few frames of a data set by name below ``root``, in one of its forms; every value of its
    labels occurs.
    """
    for seed, (image, label, values) in enumerate(FORMS[name][form]):
        write_frame(root / image, root / label, list(values), seed=seed)
        if name in IN_COLOUR:
            colour_label(root / label, IN_COLOUR[name])
    if form == 0:
        for path in BESIDE.get(name, []):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(b"not to be read")
    return root


COUNTS: dict[str, dict[str, int]] = {
    "cityscapes": {"train": 2, "val": 1},
    "acdc": {"train": 4, "train-fog": 1, "val-night": 1, "val-rain": 1, "val-snow": 1, "val": 4},
    "a2d2": {"train": 2, "val": 1, "test": 1, "all": 4},
    "bdd-anomaly-two-class": {"train": 2, "val": 1, "test": 2},
    "dark-zurich": {"val": 1},
    "fishyscapes-laf": {"val": 2},
    "fishyscapes-static": {"val": 1},
    "goose": {"train": 1, "val": 1},
    "kitti-semantics": {"train": 2, "val": 1, "all": 3},
    "lost-and-found": {
        "train": 1,
        "train-valid": 1,
        "test": 5,
        "test-valid": 4,
        "test-no-known": 2,
    },
    "mapillary-v2": {"train": 2, "val": 1},
    "muad": {"train": 1, "val": 1, "test_id": 1, "test_ood": 2},
    "railsem19": {"train": 2, "val": 1, "all": 3},
    "smiyc-anomaly": {"validation": 2},
    "smiyc-obstacle": {"validation": 2},
    "wilddash2": {"all": 2},
    "camvid": {"train": 6, "val": 1, "test": 2},
    "bdd100k": {"train": 3, "val": 2},
    "bdd-anomaly": {"train": 1, "val": 1, "test": 3},
    "idd": {"train": 2, "val": 1},
    "idd-lite": {"train": 2, "val": 1},
    "mapillary": {"train": 2, "val": 1},
    "streethazards": {"train": 2, "val": 1, "test": 2},
    "road-anomaly": {"test": 2, "all": 2},
    "course-road-anomaly-21": {"test": 2, "all": 2},
    "toy-anomaly": {"anomaly": 1},
    "course-road-obstacle-21": {"test": 2},
    "course-fs-lost-and-found": {"test": 2},
    "course-fs-static": {"test": 2},
    "course-road-anomaly": {"test": 2},
    "toy": {"train": 1, "val": 1, "test": 1, "anomaly": 1},
    "folder": {"test": 2},
    "folder-255": {"test": 1},
}
"""Frames of each split that the miniatures have."""


def _every_form() -> list[tuple[str, int]]:
    """Return each data set with the number of each of its forms."""
    pairs: list[tuple[str, int]] = []
    for name, forms in FORMS.items():
        pairs += [(name, number) for number in range(len(forms))]
    return pairs


EVERY_FORM = _every_form()
