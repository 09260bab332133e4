"""Maps to disk, so that a run killed at any moment can be continued to the same bytes.

The order of writes carries the guarantee. Every file of a frame appears whole, by atomic rename; only then is the
frame's line appended to ``frames.jsonl``. A frame without a line is unfinished whatever files it has, and is written
again. The state of a run is those lines and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from segunc.data.images import Image
from segunc.errors import InputError
from segunc.files import inside
from segunc.maps.folder import (
    OVERLAY,
    PREDICTION,
    START_LOCK,
    clear_folder,
    continued_manifest,
    place_finder,
    refuse_foreign,
    remove_partial_files,
)
from segunc.maps.frame_files import Array, encode_jpeg, encode_npy, encode_png, write_file, write_maps
from segunc.maps.frame_log import FrameLog, Record
from segunc.maps.locks import Lock, short_lock
from segunc.maps.manifest import (
    STATE_KEYS,
    Manifest,
    read_manifest,
    refuse_other_run,
    refuse_other_shards,
    write_manifest,
)
from segunc.maps.region import MASK_NAME, Region
from segunc.maps.shards import Shard, all_shards, read_shard_record, write_shard_record
from segunc.maps.sources import FrameSource
from segunc.maps.statistics import map_statistics
from segunc.maps.stored_forms import class_ids, stored_score
from segunc.maps.table import write_frame_table

__all__ = ["Maps", "MapsWriter", "encode_jpeg", "encode_npy", "encode_png"]

WHOLE = Shard()

Maps = Mapping[str, Array]
"""The maps of one frame by name: ``prediction`` as class ids, scores as real values or in their stored form."""


class MapsWriter:
    """Writes a maps folder or a shard of one, or continues it.

    Args:
        out: the folder; made if missing.
        manifest: :func:`segunc.maps.manifest.build_manifest`; its ``run`` part must equal that of an existing folder.
        overwrite: remove the maps of an existing maps folder first. A folder without a manifest, or with anything that
            the run did not write, is never cleared.
        source: of the frames; with ``overwrite``, its frames' files are the run's own even where they have no line yet.
        shard: which part of the frames is written here; the others may be written at the same time.
        region: pixels that count; the others are stored as 0 and no statistic knows them.

    Attributes:
        out: the folder.
        shard: the part.
        failed: name -> reason of the frames that failed in this run.
        was_complete: the folder (or shard) had been finished without a failure before this run.

    Raises:
        InputError: the folder holds other files, was written with other settings or in other shards, or is being written
            by another run.
    """

    def __init__(
        self,
        out: Path,
        manifest: Mapping[str, Any],
        *,
        overwrite: bool = False,
        shard: Shard = WHOLE,
        region: Region | None = None,
        source: FrameSource | None = None,
    ) -> None:
        self.out, self.shard, self._region = out, shard, region
        self.failed: dict[str, str] = {}
        self.was_complete = False
        self._log = FrameLog(inside(out, shard.frames_name))
        self._begun = self._closed = False
        if overwrite and not shard.whole:
            raise InputError("--overwrite of one shard", "a whole folder", f"remove {out} before the first shard")
        if read_manifest(out) is None:
            refuse_foreign(out)
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"output {out} cannot be made ({error.strerror})", "a folder that can be written", "give another --out"
            ) from error
        self._lock = Lock(out / shard.lock_name, f"output {out}" if shard.whole else f"shard {shard} of output {out}")
        try:
            with short_lock(out / START_LOCK, f"output {out}"):
                self._start(manifest, overwrite, source)
        except BaseException:
            self._lock.release()
            raise
        described = {name: entry for name, entry in self._manifest["maps"].items() if name != PREDICTION}
        self._scores = list(described)
        self._thresholds = {name: entry.get("component_threshold") for name, entry in described.items()}

    @property
    def manifest(self) -> Manifest:
        """The manifest as it stands."""
        return self._manifest

    @property
    def finished(self) -> int:
        """How many frames are finished, those of earlier runs included."""
        self._ensure_begun()
        return self._log.count

    def begin(self, source: FrameSource | None = None, *, in_sequence: bool = False) -> None:
        """Take up what an earlier run left; call it before the first frame.

        Args:
            source: tells which frames have changed since, and where each stands; without one, places are those of the lines.
            in_sequence: each frame depends on those before it, so what follows a gap is forgotten.

        Raises:
            InputError: ``frames.jsonl`` is damaged, or the source lacks a finished frame.
        """
        self._begun = True
        place_of = place_finder(self.out, source)
        whole = self._log.recover(place_of, in_sequence=in_sequence)
        self.was_complete = self.was_complete and whole
        self._log.open()

    def owns(self, place: int, group: int = 1) -> bool:
        """Whether the frame at a place is written here, where frames are computed in groups of so many."""
        return self.shard.owns(place, group)

    def share(self, frames: int, group: int = 1) -> int:
        """How many of the first so many frames are written here."""
        return self.shard.share(frames, group)

    @property
    def next_place(self) -> int:
        """The place behind the last finished frame."""
        self._ensure_begun()
        return self._log.next

    def is_finished(self, place: int) -> bool:
        """Whether the maps of the frame at a place of the source are all there."""
        self._ensure_begun()
        return place in self._log

    def visible(self, maps: Maps) -> Maps:
        """The maps of a frame with 0 outside of the region.

        Raises:
            InputError: the region does not fit the frame.
        """
        return maps if self._region is None else self._region.clear(maps)

    def store(self, name: str, maps: Maps, overlay: Image | None = None, *, place: int | None = None) -> Record:
        """Write the files of one frame and return its record; safe from several threads for different frames.

        Scores in 0..1 are encoded here (a uint16 array is taken as encoded), unbounded ones become float16; the record's
        statistics are of the stored values, in real units.

        Args:
            name: the frame's name.
            maps: ``prediction`` as integers ``[H, W]`` and every score of the manifest ``[H, W]``.
            overlay: RGB uint8 picture for ``overlay/``.
            place: the frame's place in the source; the next one where None.

        Raises:
            InputError: a map is missing, has another size or type, or holds NaN.
            OSError: a file cannot be written.
        """
        expected = {PREDICTION, *self._scores}
        if set(maps) != expected:
            raise InputError(f"frame {name} has the maps {sorted(maps)}", f"{sorted(expected)}", "repair the process")
        height, width = maps[PREDICTION].shape
        for score, values in maps.items():
            if values.shape != (height, width):
                raise InputError(
                    f"map {score} of frame {name} is {values.shape}", f"{(height, width)}", "repair the process"
                )
        stored = {PREDICTION: class_ids(maps[PREDICTION], name)}
        stored |= {score: stored_score(score, maps[score]) for score in self._scores}
        stored = dict(self.visible(stored))
        kept = None if self._region is None else self._region.at(height, width)
        found = {score: map_statistics(score, stored[score], self._thresholds[score], kept) for score in self._scores}
        place = self.next_place if place is None else place
        files = write_maps(self.out, name, stored)
        if overlay is not None:
            files[OVERLAY] = f"{OVERLAY}/{name}.jpg"
            write_file(inside(self.out, files[OVERLAY]), encode_jpeg(overlay))
        return {
            "name": name,
            "index": place,
            "size": [height, width],
            "files": files,
            "mean": {score: statistics.mean for score, statistics in found.items()},
            "max": {score: statistics.maximum for score, statistics in found.items()},
            "p99": {score: statistics.p99 for score, statistics in found.items()},
            "component": {score: s.component for score, s in found.items() if s.component is not None},
        }

    def commit(self, record: Record) -> None:
        """Append a stored frame's line; call it in source order, from one thread.

        The record's ``index`` is the frame's place in the source.
        """
        self._ensure_begun()
        self._log.append(record)
        self.failed.pop(record["name"], None)

    def write(self, name: str, maps: Maps, overlay: Image | None = None) -> Record:
        """:meth:`store` and :meth:`commit` in one step."""
        self._ensure_begun()
        record = self.store(name, maps, overlay)
        self.commit(record)
        return record

    def fail(self, name: str, reason: str) -> None:
        """Note that a frame failed; the manifest lists it and the next run tries it again."""
        self.failed[name] = reason

    def close(self, status: str = "finished") -> None:
        """End the run: bring the lines into source order, write the manifest with its status and failures.

        Args:
            status: ``finished`` (every frame was reached) or ``interrupted``.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._ensure_begun()
            self._log.close()
            self._write_state(status, self._log.count)
            self._write_table()
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close("finished" if kind is None else "interrupted")

    def _start(self, manifest: Mapping[str, Any], overwrite: bool, source: FrameSource | None) -> None:
        before = read_manifest(self.out)
        if before is not None and overwrite:
            clear_folder(self.out, before, source)
            before = None
        if before is not None:
            refuse_other_shards(self.out, before, self.shard)
            refuse_other_run(self.out, before.get("run", {}), manifest.get("run", {}))
            if self.shard.whole:  # other shards may be writing
                remove_partial_files(self.out)
        self._manifest = continued_manifest(before, manifest)
        if self._region is not None:
            described = {"file": MASK_NAME, "sha256": self._region.sha256, "kept": float(self._region.kept.mean())}
            self._manifest["mask"] = described | {"outside": "stored as 0, in no statistic"}
            write_file(self.out / MASK_NAME, encode_png(self._region.picture))
        if self.shard.whole:
            state = before
        else:
            self._manifest["shards"] = self.shard.count
            state = read_shard_record(self.out, self.shard)
            write_manifest(self.out, {k: v for k, v in self._manifest.items() if k not in STATE_KEYS})
        self.was_complete = state is not None and state.get("status") == "finished" and not state.get("failed")
        self._write_state("running", int((state or {}).get("finished", 0)))

    def _ensure_begun(self) -> None:
        if not self._begun:
            self.begin()

    def _write_state(self, status: str, finished: int) -> None:
        failed = [{"name": name, "reason": reason} for name, reason in sorted(self.failed.items())]
        state = {"status": status, "finished": finished, "failed": failed}
        if self.shard.whole:
            self._manifest |= state
            write_manifest(self.out, self._manifest)
        else:
            makers = {key: self._manifest.get(key) for key in ("tool", "environment", "device")}
            write_shard_record(self.out, self.shard, {**state, **makers})

    def _write_table(self) -> None:
        """``frames.csv``, by the run that has the last word on the folder."""
        with short_lock(self.out / START_LOCK, f"output {self.out}"):
            if self.shard.whole or (read_manifest(self.out) or {}).get("status") == "finished":
                write_frame_table(self.out, all_shards(self._manifest), self._scores)
