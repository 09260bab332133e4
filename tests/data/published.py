"""Miniatures of the data sets by name, drawn from the published file listings that the entries cite.

Each form is a list of frames as (image, label, values of the label); ``BESIDE`` are files that lie among them and
belong to no frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.data.miniatures import write_frame

Frame = tuple[str, str, Sequence[int]]

CITYSCAPES_IDS = (*range(34),)
TRAIN_IDS = (*range(19), 255)
BINARY = (0, 1, 255)


def _cityscapes() -> list[Frame]:
    stems = [
        ("train", "aachen/aachen_000000_000019"),
        ("train", "bochum/bochum_000000_000313"),
        ("val", "munster/munster_000000_000019"),
    ]
    return [
        (f"leftImg8bit/{split}/{stem}_leftImg8bit.png", f"gtFine/{split}/{stem}_gtFine_labelIds.png", CITYSCAPES_IDS)
        for split, stem in stems
    ]


def _acdc() -> list[Frame]:
    stems = [
        *((f"{condition}/train", "GOPR0475/GOPR0475_frame_000041") for condition in ("fog", "night", "rain", "snow")),
        *((f"{condition}/val", "GP010476/GP010476_frame_000063") for condition in ("fog", "night", "rain", "snow")),
    ]
    return [
        (f"rgb_anon/{part}/{stem}_rgb_anon.png", f"gt/{part}/{stem}_gt_labelTrainIds.png", TRAIN_IDS)
        for part, stem in stems
    ]


def _camvid() -> list[Frame]:
    known, every = (*range(10), 11), (*range(12),)
    names = [
        *(("train", f"0016E5_{i:05d}", known) for i in range(390, 395)),
        ("train", "0001TP_006690", every),
        ("val", "0016E5_07959", every),
        ("test", "0001TP_008550", every),
        ("test", "Seq05VD_f00000", known),
    ]
    return [(f"{split}/{name}.png", f"{split}annot/{name}.png", values) for split, name, values in names]


_BDD = [
    ("train", "0004a4c0-d4dff0ad", (*range(16), 255)),
    ("train", "00054602-3bf57337", TRAIN_IDS),
    ("val", "7d128593-0ccfea4c", (*range(16), 255)),
    ("val", "7d15b18b-1e0d6e3f", (0, 17, 255)),
]


def _bdd(images: str, labels: str, ending: str) -> list[Frame]:
    return [(f"{images}/{split}/{name}.jpg", f"{labels}/{split}/{name}{ending}.png", v) for split, name, v in _BDD]


_BDD_FORMS = (_bdd("images/10k", "labels/sem_seg/masks", ""), _bdd("seg/images", "seg/labels", "_train_id"))


def _muad() -> list[Frame]:
    known, every = (*range(12), 13, 14, 15, 21), (*range(21), 255)
    frames = [("train", "001246", known), ("val", "001915", known), ("test_id", "000001", known)]
    frames += [("test_ood", "000001", every), ("test_ood", "000002", every)]
    return [
        (f"{split}/leftImg8bit/{name}_leftImg8bit.png", f"{split}/leftLabel/{name}_leftLabel.png", values)
        for split, name, values in frames
    ]


_STREETS = [
    ("train", "training/t1-3/0", (*range(1, 14),)),
    ("train", "training/t1-3/1", (*range(1, 14),)),
    ("train", "validation/t4/0", (*range(1, 14),)),
    ("test", "test/t5/0", (*range(1, 15),)),
    ("test", "test/t6/0", (*range(1, 15),)),
]


def _streets(archives: bool) -> list[Frame]:
    return [
        (
            f"{f'{archive}/' if archives else ''}images/{name}.png",
            f"{f'{archive}/' if archives else ''}annotations/{name}.png",
            values,
        )
        for archive, name, values in _STREETS
    ]


def _masks(images: str, labels: str, names: Sequence[str], suffix: str, ending: str = "") -> list[Frame]:
    return [(f"{images}/{name}.{suffix}", f"{labels}/{name}{ending}.png", BINARY) for name in names]


def _track(folder: str, names: Sequence[str], suffix: str) -> tuple[list[Frame], ...]:
    return tuple(
        _masks(f"{below}images", f"{below}labels_masks", names, suffix, "_labels_semantic")
        for below in (f"{folder}/", "")
    )


_ROAD_ANOMALY = ("animals01_Guiguinto_railway_station_Calves", "cones02_Broadmoor_Manhole_Cones")


def _road_anomaly() -> tuple[list[Frame], ...]:
    official: list[Frame] = [
        (f"frames/{n}.jpg", f"frames/{n}.labels/labels_semantic.png", (0, 2)) for n in _ROAD_ANOMALY
    ]
    flat: list[list[Frame]] = [
        [(f"images/{name}.jpg", f"{labels}/{name}.png", (0, 2)) for name in _ROAD_ANOMALY]
        for labels in ("labels_masks", "labels")
    ]
    return (official, *flat)


_LOST_AND_FOUND = [
    ("train", "01_Hanns_Klemm_Str_45_000000_000080", (0, 1, 2)),
    ("test", "02_Hanns_Klemm_Str_44_000000_000020", (0, 1, 2, 31, 43)),
    ("test", "02_Hanns_Klemm_Str_44_000000_000030", (0,)),
    ("test", "15_Rechbergstr_Deckenpfronn_000000_000010", (0, 1, 26)),
    ("test", "10_Schlossberg_9_000004_000050", (0, 1, 23)),
    ("test", "10_Schlossberg_9_000003_000050", (0, 1, 9)),
]


def _lost_and_found() -> list[Frame]:
    return [
        (
            f"leftImg8bit/{split}/{name[:-14]}/{name}_leftImg8bit.png",
            f"gtCoarse/{split}/{name[:-14]}/{name}_gtCoarse_labelIds.png",
            values,
        )
        for split, name, values in _LOST_AND_FOUND
    ]


def _fishyscapes_laf() -> tuple[list[Frame], ...]:
    names = ["04_Maurener_Weg_8_000000_000030", "13_Elly_Beinhorn_Str_000003_000260"]
    labels = [f"fishyscapes_lostandfound/{i:04d}_{name}_labels.png" for i, name in enumerate(names)]
    images = ("leftImg8bit/train/{scene}/{name}_leftImg8bit.png", "laf_images/{name}_leftImg8bit.png")
    forms: list[list[Frame]] = [
        [(form.format(scene=n[:-14], name=n), label, BINARY) for n, label in zip(names, labels, strict=True)]
        for form in images
    ]
    return (*forms, _masks("original", "labels", names, "png"))


def _fishyscapes_static() -> tuple[list[Frame], ...]:
    stem = "0003_frankfurt_000001_034047"
    return (
        [(f"fs_static_images/{stem}_rgb.png", f"fs_val_v3/{stem}_labels.png", BINARY)],
        _masks("original", "labels", [stem], "png"),
    )


def _course(folder: str, names: Sequence[str], suffix: str, values: Sequence[int] = BINARY) -> tuple[list[Frame], ...]:
    return tuple(
        [(f"{below}images/{name}.{suffix}", f"{below}labels_masks/{name}.png", values) for name in names]
        for below in (f"{folder}/", "")
    )


def _toy(label: str, ending: str, values: Sequence[int], splits: Sequence[str]) -> list[Frame]:
    stem = "elsewhere/elsewhere_000000_000019"
    return [
        (f"leftImg8bit/{split}/{stem}_leftImg8bit.png", f"{label}/{split}/{stem}{ending}.png", values)
        for split in splits
    ]


_TOY_IDS = (23, 11, 21, 7, 8, 26, 24, 17, 20, 0)

FORMS: dict[str, tuple[list[Frame], ...]] = {
    "cityscapes": (_cityscapes(),),
    "acdc": (_acdc(),),
    "camvid": (_camvid(),),
    "bdd100k": _BDD_FORMS,
    "bdd-anomaly": _BDD_FORMS,
    "muad": (_muad(),),
    "streethazards": (_streets(True), _streets(False)),
    "road-anomaly": _road_anomaly(),
    "smiyc-anomaly": _track("dataset_AnomalyTrack", ("validation0000", "validation0009"), "jpg"),
    "smiyc-obstacle": _track("dataset_ObstacleTrack", ("validation_1", "validation_18"), "webp"),
    "lost-and-found": (_lost_and_found(),),
    "fishyscapes-laf": _fishyscapes_laf(),
    "fishyscapes-static": _fishyscapes_static(),
    "course-road-anomaly-21": _course("RoadAnomaly21", ("0", "1"), "png"),
    "course-road-obstacle-21": _course("RoadObsticle21", ("0", "1"), "webp"),
    "course-fs-lost-and-found": _course("FS_LostFound_full", ("0", "1"), "png"),
    "course-fs-static": _course("fs_static", ("0", "1"), "jpg"),
    "course-road-anomaly": _course("RoadAnomaly", ("0", "1"), "jpg", (0, 2)),
    "toy": (_toy("gtFine", "_gtFine_labelIds", _TOY_IDS, ("train", "val", "test", "anomaly")),),
    "toy-anomaly": (_toy("gtAnomaly", "_anomaly", BINARY, ("anomaly",)),),
    "folder": (_course("test", ("a", "b"), "jpg")[0], _masks("test/images", "test/labels", ("a", "b"), "webp")),
}
"""Every data set by name, in each of the forms that its entry reads."""

BESIDE = {
    "cityscapes": [
        "gtFine/train/aachen/aachen_000000_000019_gtFine_color.png",
        "gtFine/train/aachen/aachen_000000_000019_gtFine_instanceIds.png",
        "gtFine/train/aachen/aachen_000000_000019_gtFine_labelTrainIds.png",
        "gtFine/train/aachen/aachen_000000_000019_gtFine_polygons.json",
    ],
    "acdc": [
        "gt/fog/train/GOPR0475/GOPR0475_frame_000041_gt_labelIds.png",
        "gt/fog/train/GOPR0475/GOPR0475_frame_000041_gt_labelColor.png",
        "rgb_anon/fog/train_ref/GOPR0475/GOPR0475_frame_000041_rgb_ref_anon.png",
    ],
    "bdd100k": ["labels/sem_seg/colormaps/train/0004a4c0-d4dff0ad.png", "images/10k/test/ac6d4f42-00000000.jpg"],
    "lost-and-found": [
        "gtCoarse/test/02_Hanns_Klemm_Str_44/02_Hanns_Klemm_Str_44_000000_000020_gtCoarse_color.png",
        "gtCoarse/test/02_Hanns_Klemm_Str_44/02_Hanns_Klemm_Str_44_000000_000020_gtCoarse_instanceIds.png",
        "gtCoarse/test/02_Hanns_Klemm_Str_44/02_Hanns_Klemm_Str_44_000000_000020_gtCoarse_labelTrainIds.png",
    ],
    "smiyc-anomaly": [
        "dataset_AnomalyTrack/images/zebra0000.jpg",  # a test frame, whose label the benchmark keeps
        "dataset_AnomalyTrack/labels_masks/validation0000_labels_semantic_color.png",
    ],
    "smiyc-obstacle": ["dataset_ObstacleTrack/images/paving_axe_2.webp"],
    "road-anomaly": [
        "frame_list.json",
        f"frames/{_ROAD_ANOMALY[0]}.labels/labels_semantic_color.png",
    ],
    "fishyscapes-laf": [  # Lost and Found has many more frames
        "leftImg8bit/train/04_Maurener_Weg_8/04_Maurener_Weg_8_000000_000040_leftImg8bit.png",
    ],
    "fishyscapes-static": ["fs_val_v3/0003_frankfurt_000001_034047_rgb.npz"],
}
"""Files that lie beside those of the first form."""


def draw_miniature(name: str, root: Path, form: int = 0) -> Path:
    """A few frames of a data set by name below ``root``, in one of its forms; every value of its labels occurs."""
    for seed, (image, label, values) in enumerate(FORMS[name][form]):
        write_frame(root / image, root / label, list(values), seed=seed)
    for path in BESIDE.get(name, []) if form == 0 else []:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"not to be read")
    return root
