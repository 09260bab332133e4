"""Maps of images in memory, written into a folder as ``segunc predict`` writes them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import inside, safe_name, write_file
from segunc.core.removal import is_listed
from segunc.data.channels import shown_colours
from segunc.maps.encoding import Array, encode_png
from segunc.maps.folder import PREDICTION
from segunc.maps.manifest import build_manifest, read_manifest
from segunc.maps.shards import FrameRecords, Shard, file_sum
from segunc.maps.store import MapsWriter
from segunc.posteriors.map_origin import MapsOfImage
from segunc.scores import SCORES


class _FrameMaps(dict[str, Array]):
    """The maps of one image by name, and what made the strongest pixels of its sums of scores."""

    def __init__(self, maps: MapsOfImage) -> None:
        super().__init__(maps.scores)
        self[PREDICTION] = maps.prediction
        self._made = maps.reasons

    @property
    def reasons(self) -> Any:
        """See :data:`segunc.maps.store.Reasons`; None without a sum of scores. Where no region of a
        sum is strong there are no reasons, and the record of the frame says so.
        """
        has_sum = any("scores" in SCORES[name].sources for name in self if name in SCORES)
        return self._of_pixels if has_sum else None

    def _of_pixels(self, pixels: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        return [dict(self._made.get(pixel, {})) for pixel in pixels]


def save_maps(
    folder: Path | str,
    names: Sequence[str],
    maps: Sequence[MapsOfImage],
    *,
    images: Path | str | None = None,
    compact: bool = False,
) -> None:
    """Add the maps of images to a folder, see
    :meth:`segunc.posteriors.image_maps.ImageMaps.save`.

    Args:
        folder: of the maps.
        names: of the frames, one for each image.
        maps: of the images, which one model made.
        images: a folder for the images themselves; None writes none.
        compact: whether maps are stored as means of 2 x 2 pixels.
    """
    folder = Path(folder)
    _check_names(names, len(maps))
    pictures = {} if images is None else _pictures(Path(images), names, maps)
    writer = _open(folder, manifest_of(maps[0], compact=compact))
    status = "interrupted"
    try:
        writer.begin()
        records = FrameRecords(folder, [Shard()])
        for name, image in zip(names, maps, strict=True):
            _add(writer, records, name, _FrameMaps(image))
        status = "finished"
    except InputError:  # it was raised before a file of the frame was written
        status = "finished"
        raise
    finally:
        writer.close(status)
    for path, data in pictures.items():
        write_file(path, data)


def _check_names(names: Sequence[str], images: int) -> None:
    """Raise InputError where there is not one name for each image, or a name of no file."""
    if len(names) != images:
        raise InputError(
            f"the maps are of {images} {'image' if images == 1 else 'images'}, and the names given "
            f"are {len(names)}",
            hint="give a list of one name for each image",
        )
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise InputError(f"the name '{twice[0]}' is given twice", hint="give each image its own")
    for name in names:
        try:
            safe_name(name, "a frame")
        except InputError as error:
            raise InputError(error.message, hint="name it by letters, digits and '-'") from error


def _pictures(folder: Path, names: Sequence[str], maps: Sequence[MapsOfImage]) -> dict[Path, bytes]:
    """Return the PNG of each image, by the path where it is to be.

    Raises:
        InputError: an image is not known, or there is another file in its place.
    """
    pictures = {}
    for name, image in zip(names, maps, strict=True):
        if image.image is None:
            raise InputError(f"the maps of '{name}' hold no image", hint="leave images out")
        path = inside(folder, f"{name}.png")
        data = encode_png(shown_colours(image.image))
        if os.path.lexists(path) and not is_listed(path, [file_sum(data)]):
            raise InputError(
                f"{path} is another file than the image of these maps, so it is not replaced",
                hint="give another folder as images",
            )
        pictures[path] = data
    return pictures


def manifest_of(maps: MapsOfImage, *, compact: bool) -> dict[str, Any]:
    """Return the manifest of a folder of maps like these.

    Raises:
        InputError: they do not say what made them.
    """
    origin = maps.origin
    if origin is None:
        raise InputError(
            "these maps do not say which model made them, so a folder of them would not either",
            hint="save maps that a model returned",
        )
    run = dict(origin.run)
    if compact:
        run["compact"] = True
    return build_manifest(
        run,
        list(maps.scores),
        device=origin.device,
        classes=maps.classes,
        palette=maps.palette,
        source={"kind": "array"},
        model=origin.model,
        component_thresholds=run["component_thresholds"],
        measured_to=origin.measured_to,
    )


def _open(folder: Path, manifest: Mapping[str, Any]) -> MapsWriter:
    """Open a folder for more maps.

    Raises:
        InputError: it holds maps of other scores or of another run, or other files.
    """
    before = read_manifest(folder)
    if before is not None and set(before["maps"]) != set(manifest["maps"]):
        raise InputError(
            f"{folder} holds the scores {_scores_in(before)}, "
            f"and these maps have {_scores_in(manifest)}",
            hint="ask the model for the same scores, or save into another folder",
        )
    try:
        return MapsWriter(folder, manifest)
    except InputError as error:
        raise InputError(error.message, hint="save into another folder") from error


def _scores_in(manifest: Mapping[str, Any]) -> str:
    """Return the names of the scores of a manifest in words."""
    return ", ".join(name for name in manifest["maps"] if name != PREDICTION)


def _add(
    writer: MapsWriter, records: Mapping[str, Mapping[str, Any]], name: str, maps: _FrameMaps
) -> None:
    """Write the maps of a frame that the folder does not hold yet.

    Raises:
        InputError: it holds other maps of this name.
    """
    if name not in records:
        writer.write(name, maps)
        return
    before = records[name]["sums"]
    now = writer.encoder.sums(name, maps)
    others = [score for score in now if now[score] != before[score]]
    if others:
        raise InputError(
            f"{writer.out} holds another map '{others[0]}' of the frame '{name}'",
            hint="save under another name, or into another folder",
        )
