"""Maps to disk, so that a run killed at any moment can be continued to the same bytes: every file
of a frame appears whole, and only then the frame's line in ``frames.jsonl``. The state of a run is
those lines and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from segunc.core.errors import InputError
from segunc.core.files import START_SECONDS, Lock, differing_keys, inside, safe_name
from segunc.core.removal import MOVE, check_free, remove_partials
from segunc.data.images import Image
from segunc.frames.source import FrameSource
from segunc.maps.encoding import (
    Array,
    class_ids,
    encode_compact,
    encode_jpeg,
    encode_npy,
    encode_png,
    encode_score,
)
from segunc.maps.folder import (
    OVERLAY,
    OVERLAY_VIDEO,
    PREDICTION,
    START_LOCK,
    begun_files,
    clear_folder,
    is_whole,
    refuse_foreign,
    write_map,
)
from segunc.maps.manifest import COMPACT_VALUES, MAKERS, STATE_KEYS, Manifest, read_manifest
from segunc.maps.regions import MASK_NAME, Region, map_statistics, strongest_regions
from segunc.maps.shards import (
    FRAMES_NAME,
    LOCK_STEM,
    STATISTICS,
    FrameLog,
    Record,
    Shard,
    Sum,
    file_sum,
    read_state,
    write_state,
)
from segunc.scores import SCORES

WHOLE = Shard()
MAX_BEGUN_FILES = (
    4096  # files that are listed as begun; more are gone through for those that have a line
)
Reasons = Callable[[list[tuple[int, int]]], list[dict[str, Any]]]
"""Returns of pixels (x, y) what made each of them, see :class:`segunc.sampling.sampler.Reasons`."""
Maps = Mapping[str, Array]
"""The maps of one frame by name: ``prediction`` as class ids, scores as real values or in their
stored form.
"""


class MapsWriter:
    """Writes a maps folder or a shard of one, or continues it, where the ``run`` part of its
    manifest is the same; ``overwrite`` and ``verify`` are those of
    :class:`segunc.options.PredictOptions`. Pixels outside of ``region`` are read as 0 and no
    statistic knows them.

    Attributes:     forgotten: how many frames of an earlier run are made again: their maps or lines
    are missing or damaged, or their images are others.     failed: name -> reason of the frames
    that failed in this run; the manifest lists them, the next run tries them again. was_complete:
    the folder (or shard) had been finished without a failure before this run.
    """

    def __init__(
        self,
        out: Path,
        manifest: Mapping[str, Any],
        *,
        overwrite: bool = False,
        shard: Shard = WHOLE,
        region: Region | None = None,
        verify: bool = False,
    ) -> None:
        self.out, self.shard, self._region, self._verify = out, shard, region, verify
        self.failed: dict[str, str] = {}
        self.was_complete, self.forgotten, self._finished_before = False, 0, 0
        self._log = FrameLog(inside(out, shard.file(FRAMES_NAME)))
        self._begun_files = begun_files(out, shard)
        self._begun_before: list[str] = []
        self._begun_frames: dict[str, list[str]] = {}  # name -> files that have no line yet
        self._begun = self._closed = self._moved = False
        self._continues = False
        self._given_up = 0  # lines whose frames are made again
        if overwrite and not shard.whole:
            raise InputError(
                "one shard cannot overwrite a folder", hint=f"remove {out} before the first shard"
            )
        if read_manifest(out) is None:
            refuse_foreign(out)
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"output {out} cannot be made ({error.strerror})", hint="give another --out"
            ) from error
        what = f"output {out}" if shard.whole else f"shard {shard} of output {out}"
        self._lock = Lock(out / shard.file(LOCK_STEM), what)
        try:
            with Lock(out / START_LOCK, f"output {out}", START_SECONDS):
                self._start(manifest, overwrite)
        except BaseException:
            self._lock.release()
            raise
        maps = self.manifest["maps"]
        self._thresholds = {
            name: maps[name].get("component_threshold") for name in maps if name != PREDICTION
        }

    @property
    def lines(self) -> FrameLog:
        """The finished frames by their place in the source, those of earlier runs included."""
        if not self._begun:
            self.begin()
        return self._log

    def begin(self, source: FrameSource | None = None) -> None:
        """Take up what an earlier run left, but for frames that the source has changed since; call
        it before the first frame.

        Raises:
            InputError: a finished frame stands in the source no more, or somebody's file has the
                name of a map to come; no map and no line is changed.
        """
        try:
            self.forgotten = self._log.recover(
                keeps=lambda record: self._keeps_line(record, source),
                check=lambda damaged: self._check_coming(source, damaged),
            )
        except BaseException:
            self._closed = True
            self._lock.release()
            raise
        self._begun = True
        self.forgotten = max(
            self.forgotten, self._finished_before - len(self._log)
        )  # whole lines may be gone
        self.was_complete = self.was_complete and not self.forgotten
        self._write_state("running", self._finished_before)

    def visible(self, maps: Maps) -> Maps:
        """Return the maps of a frame with 0 outside of the region; raise InputError where that does
        not fit the frame.
        """
        return maps if self._region is None else self._region.clear(maps)

    def store(
        self, name: str, maps: Maps, overlay: Image | None = None, *, place: int | None = None
    ) -> Record:
        """Write the files of one frame and return its record, whose statistics are of the values
        before they become compact; safe from several threads for different frames. The place is the
        next one where None. Maps with ``reasons`` have their peaks recorded.
        """
        expected = {PREDICTION, *self._thresholds}
        if set(maps) != expected:
            raise InputError(f"frame {name} has the maps {sorted(maps)}, not {sorted(expected)}")
        height, width = maps[PREDICTION].shape
        for score, values in maps.items():
            if values.shape != (height, width):
                raise InputError(
                    f"map {score} of frame {name} is {values.shape}, not {(height, width)}"
                )
        scores = {score: encode_score(score, maps[score]) for score in self._thresholds}
        whole = {PREDICTION: class_ids(maps[PREDICTION], name), **scores}
        stored = self.visible(whole)
        encoded = self._encode(name, whole, stored, overlay)
        record: Record = {
            "name": name,
            "index": len(self.lines) if place is None else place,
            "size": [height, width],
            "files": {score: file for score, (file, _) in encoded.items()},
            "sums": self._write_files(name, encoded),
        }
        self._add_statistics(record, stored)
        # Reasons of pixels (x, y), see segunc.sampling.sampler.Reasons.
        reasons = getattr(maps, "reasons", None)
        if reasons:
            self._add_peaks(record, stored, reasons)
        return record

    def _encode(
        self, name: str, whole: Maps, stored: Maps, overlay: Image | None
    ) -> dict[str, tuple[str, bytes]]:
        """Return the file of each map of a frame, relative to the folder, with its bytes.

        Args:
            name: of the frame.
            whole: the maps in their stored form.
            stored: the same with 0 outside of the region.
            overlay: RGB uint8 ``[h, w, 3]``, where there is one.
        """
        encoded: dict[str, tuple[str, bytes]] = {}
        for score, visible in stored.items():
            values = visible
            if self.manifest["maps"][score].get("value") in COMPACT_VALUES.values():
                # A mean with the 0 from outside of the region would change pixels inside; readers
                # clear what is outside.
                values = encode_compact(whole[score])
            if values.dtype == np.float16:
                encoded[score] = (f"{score}/{name}.npy", encode_npy(values))
            else:
                encoded[score] = (f"{score}/{name}.png", encode_png(values))
        if overlay is not None:
            encoded[OVERLAY] = (f"{OVERLAY}/{name}.jpg", encode_jpeg(overlay))
        return encoded

    def _write_files(self, name: str, encoded: Mapping[str, tuple[str, bytes]]) -> dict[str, Sum]:
        """Write the files of a frame, and return the sum of each; InputError where one would
        replace somebody's file, and then none is written."""
        for file, data in encoded.values():
            check_free(self.out, file, self._is_recorded, content=file_sum(data))
        self._begun_frames[name] = []
        sums: dict[str, Sum] = {}
        for score, (file, data) in encoded.items():
            self._begun_frames[name].append(file)
            sums[score] = write_map(self.out, file, data, self._begun_files)
        return sums

    def _is_recorded(self, file: str) -> bool:
        """Return whether a file of a frame without a line is one that a run of this folder began to
        write, or that a line listed which is given up."""
        return file in self._begun_files.listed

    def _add_statistics(self, record: Record, stored: Maps) -> None:
        """Add the statistics of the stored maps to the record of their frame."""
        height, width = record["size"]
        kept = None if self._region is None else self._region.at(height, width)
        numbers = {
            score: map_statistics(stored[score], threshold, kept)
            for score, threshold in self._thresholds.items()
        }
        for statistic in STATISTICS:
            record[statistic] = {
                score: values[statistic] for score, values in numbers.items() if statistic in values
            }

    def _add_peaks(self, record: Record, stored: Maps, reasons: Reasons) -> None:
        """Add the reasons of the strongest regions of each sum of scores to the record of their
        frame."""
        height, width = record["size"]
        kept = None if self._region is None else self._region.at(height, width)
        for score, threshold in self._thresholds.items():
            if threshold is None or "scores" not in SCORES[score].sources:
                continue
            regions = strongest_regions(stored[score], threshold, kept=kept)
            peaks = reasons([region.peak for region in regions])
            for peak, (*_, area, strength, at) in zip(peaks, regions, strict=True):
                peak |= {"at": list(at), "area": area, "strength": float(f"{strength:.9g}")}
            record.setdefault("peaks", {})[score] = peaks

    def commit(self, record: Record) -> None:
        """Append a stored frame's line; call it in source order, from one thread."""
        self.lines.append(record)
        self._begun_frames.pop(record["name"], None)
        self.failed.pop(record["name"], None)
        if len(self._begun_files.listed) > MAX_BEGUN_FILES + len(self._begun_before):
            self._begun_files.forget(but=self._without_line())

    def _without_line(self) -> Iterator[str]:
        """Yield the files that may be there without a line: of frames being written, and of a run
        that was killed before this one. It is asked while nothing is added to the list, and a file
        is noted here before it is added there."""
        yield from self._begun_before
        for files in [*self._begun_frames.values()]:
            yield from [*files]

    def write(self, name: str, maps: Maps) -> None:
        """:meth:`store` and :meth:`commit` in one step."""
        self.commit(self.store(name, maps))

    def close(self, status: str = "finished") -> None:
        """End the run: bring the lines into source order, write the manifest with its status,
        ``finished`` or ``interrupted``.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.lines.close()
            self._write_state(status, len(self._log))
            if status == "finished" and not (self._begun_frames or self.failed):
                # A video of the overlays may wait for its note in the manifest.
                self._begun_files.forget(but=[OVERLAY_VIDEO])
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close("finished" if kind is None else "interrupted")

    def _start(self, manifest: Mapping[str, Any], overwrite: bool) -> None:
        before = read_manifest(self.out)
        if before is not None and overwrite:
            clear_folder(self.out, before)
            before = None
        if before is not None:
            if (count := before.get("shards", 1)) != self.shard.count:
                missing = ", ".join(before.get("missing_shards", ())) or "none"
                begun = f"was begun in {count} shards, not in {self.shard.count} (not finished: {missing})"
                raise InputError(f"{self.out} {begun}", hint="give another --out")
            then, now = before["run"], manifest["run"]
            self._moved = then.get("input") != now.get("input")
            if different := differing_keys(
                then | ({"input": now.get("input")} if self._moved else {}), now
            ):
                shown = ", ".join(
                    f"{key} = {value!r} (now {current!r})" for key, value, current in different[:3]
                )
                more = f" and {len(different) - 3} more" if len(different) > 3 else ""
                raise InputError(
                    f"{self.out} was written with {shown}{more}",
                    hint="give another --out, or --overwrite",
                )
            if not self.shard.whole:
                self._check_list(before, manifest)
        self.manifest: Manifest = dict(before or manifest)
        if self._moved:  # the run keeps its record, by which verdicts know it
            self.manifest["moved_to"] = manifest["run"]["input"]
        makers = [{key: made.get(key) for key in MAKERS} for made in (self.manifest, manifest)]
        if makers[1] not in (makers[0], *self.manifest.get("continued_by", ())):
            self.manifest["continued_by"] = [*self.manifest.get("continued_by", ()), makers[1]]
        if before is not None and self.shard.whole:  # other shards may be writing
            remove_partials(self.out)
        if self._region is not None:
            described = {
                "file": MASK_NAME,
                "sha256": self._region.sha256,
                "kept": float(self._region.kept.mean()),
            }
            self.manifest["mask"] = described | {"outside": "read as 0, in no statistic"}
            write_map(
                self.out,
                MASK_NAME,
                encode_png(np.where(self._region.kept, 255, 0).astype(np.uint8)),
            )
        self._begun_before = [*self._begun_files.listed]
        self._continues = before is not None
        state = before or {}
        if not self.shard.whole:
            self.manifest["shards"] = self.shard.count
            state = read_state(self.out, self.shard) or {}
            write_state(
                self.out, WHOLE, {k: v for k, v in self.manifest.items() if k not in STATE_KEYS}
            )
        self.was_complete = state.get("status") == "finished" and not state.get("failed")
        self._finished_before = int(state.get("finished", 0))
        if before is None:
            self._write_state("running", 0)  # else once it is known that the run can go on

    def _check_list(self, before: Manifest, manifest: Mapping[str, Any]) -> None:
        """Raise InputError where the source lists other frames than when the first shard began.
        Frames are dealt out by their places in the list, so with another list some frames would
        belong to no shard, or to two."""
        then = before.get("source", {})
        now = manifest.get("source", {})
        # Folders that earlier versions began record the number alone.
        known = [key for key in ("frames", "names_sha256") if then.get(key) is not None]
        if all(then[key] == now.get(key) for key in known):
            return
        count = now.get("frames")
        change = f"it now lists {count}"
        if count == then.get("frames"):
            change = f"it now lists {count} of other names"
        source = manifest["run"].get("input")
        before_that = f"{source} listed {then.get('frames')} frames"
        fact = f"{self.out} was begun in shards when {before_that}, and {change}"
        raise InputError(
            fact,
            hint="move the new images away until all shards have ended, "
            "or begin all shards again in another --out",
        )

    def _keeps_line(self, record: Record, source: FrameSource | None) -> bool:
        """Return whether the frame of a line is finished. The files of one that is not are listed
        as begun, because its line goes and they stay until they are made again."""
        if self._keeps(record, source):
            return True
        self._given_up += 1
        sums = record["sums"]
        files = record["files"]
        self._begun_files.note_all({file: [sums[key]] for key, file in files.items()})
        self._begun_before += files.values()
        return False

    def _check_coming(self, source: FrameSource | None, damaged: int) -> None:
        """Raise InputError where somebody's file has the name of a map that is still to come. The
        frames of images are known; those of a video are looked at one by one as they come.

        Where lines are damaged or lost, their files are in no record, and a file of the run cannot
        be told from somebody's before the map is made again. Then each is compared with the bytes
        that are to be written there.
        """
        if source is None or source.length is None or not self._continues:
            return
        if damaged or self._finished_before > len(self._log) + self._given_up:
            return
        for place in range(source.length):
            if place in self._log or not self.shard.owns(place):
                continue
            name = source.name_of(place)
            if name is None or not _is_safe(name):  # such a frame fails alone, by its name
                continue
            for file in self._files_of(name):
                check_free(self.out, file, self._is_recorded, hint=self._hint_of_taken())

    def _files_of(self, name: str) -> Iterator[str]:
        """Yield the files that a frame will have, relative to the folder."""
        for score, described in self.manifest["maps"].items():
            yield f"{score}/{name}.{described['file']}"
        if self.manifest["run"].get("overlay"):
            yield f"{OVERLAY}/{name}.jpg"

    def _hint_of_taken(self) -> str:
        """Return what to do about a file that has the name of a map to come."""
        if self._begun_before:
            return MOVE
        # Earlier versions kept no list of what they began.
        return f"{MOVE}; a run of an earlier version that was killed may have left it"

    def _keeps(self, record: Record, source: FrameSource | None) -> bool:
        """Return whether the frame of a line is finished: its maps are whole, and its image file
        was not replaced.
        """
        if not is_whole(self.out, record, verify=self._verify):
            return False
        if source is None:
            return True
        place, name = record["index"], record["name"]
        if source.name_of(place) != name:
            raise InputError(
                f"{self.out} holds maps of frame {name} as number {place} of {source.path}, where it is no more",
                hint="restore it (--all-images, where it looks like a label), give another --out, or --overwrite",
            )
        same = source.stamp(place) == record.get("stamp")
        if self._moved and not same:
            fact = f"{self.out} was written of {self.manifest['run']['input']}, and frame {name} of {source.path} is another picture"
            raise InputError(fact, hint="give another --out, or --overwrite")
        return same

    def _write_state(self, status: str, finished: int) -> None:
        failed = [{"name": name, "reason": reason} for name, reason in sorted(self.failed.items())]
        state = {"status": status, "finished": finished, "failed": failed}
        if self.shard.whole:
            content = self.manifest = self.manifest | state
        else:
            content = {
                "format": "segunc-maps-shard",
                "shard": [self.shard.number, self.shard.count],
            } | state
            content |= {key: self.manifest.get(key) for key in MAKERS}
        write_state(self.out, self.shard, content)


def _is_safe(name: str) -> bool:
    """Return whether files of a frame can have its name."""
    try:
        safe_name(name, "a frame")
    except InputError:
        return False
    return True
