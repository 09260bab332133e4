"""Whether class labels and the predictions of a maps folder number the classes alike."""

from __future__ import annotations

from segunc.data.labels import LabelMap
from segunc.errors import InputError
from segunc.maps.reader import MapsReader


def check_classes(reader: MapsReader, label_map: LabelMap) -> None:
    """Refuse a label map that numbers the classes otherwise than the network did; other words for them may pass."""
    names = (reader.manifest or {}).get("classes", {}).get("names")
    if names is None:
        return
    moved = [name for i, name in enumerate(names) if name in label_map.classes and label_map.classes.index(name) != i]
    if len(names) != label_map.num_classes or moved:
        detail = f"class '{moved[0]}' has another number" if moved else f"it has {label_map.num_classes} classes"
        raise InputError(
            f"label map '{label_map.name}' does not fit the maps in {reader.folder}: {detail}",
            f"the {len(names)} classes {', '.join(names)}",
            "give the label map that the network was trained with",
        )
