"""Image files as frames, each with the hash of its file."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import frame_order, safe_name
from segunc.data.channels import COLOUR, read_frame
from segunc.data.frame_names import composed
from segunc.data.images import PixelDepth
from segunc.frames.source import ALL_FRAMES, Frame, FrameSource, Kind, Selection, Skip, sampled_hash

STAMP_STRETCHES = 4
"""Pieces of an image file that its stamp reads: few, as a resumed run reads those of all frames."""
STAMP_LENGTH = 4096
"""Bytes of each piece."""


class ImageSource(FrameSource):
    """Image files in the order of their names (:func:`segunc.core.files.frame_order`).

    Each is decoded when its turn comes; only relative paths are kept in memory.

    Raises:
        InputError: two images have one name, or the selection is by time.
    """

    depth: PixelDepth

    def __init__(
        self,
        kind: Kind,
        path: Path | str,
        root: Path | str,
        files: Iterable[str],
        selection: Selection = ALL_FRAMES,
        channels: int = COLOUR,
    ) -> None:
        """Take files as frames.

        Args:
            kind: of the input.
            path: what was opened.
            root: the folder of the files.
            files: their paths relative to the root, with ``/``.
            selection: which of them are taken.
            channels: of the images, as the network takes them.
        """
        if selection.timed:
            raise InputError(f"images have no times: {path}", hint="leave --start and --end out")
        self.kind = kind
        self.path = path
        self.selection = selection
        self.channels = channels
        self._root = root
        relative = sorted(files, key=lambda file: frame_order(_stem(file)))
        file_of: dict[str, str] = {}
        for file in relative:
            # A letter with an accent may be written as one sign or as two.
            first = file_of.setdefault(composed(_stem(file)), file)
            if first != file:
                raise InputError(
                    f"{self._place(first)} and {self._place(file)} are both frame '{_stem(first)}'",
                    hint="rename or remove one",
                )
        self._files = relative[:: selection.every]
        self.depth = PixelDepth()
        self.length = len(self._files)
        self.length_hint = self.length

    def _place(self, relative: str) -> str:
        """Return where a file is, for messages."""
        return os.path.join(self._root, relative)

    @contextlib.contextmanager
    def _local(self, relative: str) -> Iterator[Path]:
        """Yield the path of a file on this machine, where it stays meanwhile."""
        yield Path(self._root, relative)

    def name_of(self, index: int) -> str | None:
        return _stem(self._files[index]) if index < len(self._files) else None

    def file_of(self, index: int) -> str | None:
        return self._files[index] if index < len(self._files) else None

    def describe(self) -> dict[str, Any]:
        """Return what a manifest records of the source.

        A hash of the names of its frames is part of it: shards of one run share the list.
        """
        digest = hashlib.sha256()
        for file in self._files:
            digest.update(composed(_stem(file)).encode() + b"\n")
        return super().describe() | {"names_sha256": digest.hexdigest()}

    def stamp(self, index: int) -> str | None:
        with contextlib.suppress(OSError):
            return stamp_of(Path(self._root, self._files[index]))
        return None

    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        for index, relative in enumerate(self._files):
            name = _stem(relative)
            if skip is None or not skip(index, name):
                yield self._read(index, name, relative)

    def _read(self, index: int, name: str, relative: str) -> Frame:
        """Return a frame, or the reason why its file gives none."""
        stem, suffix = os.path.splitext(relative)
        shown = self._place(f"{name}{suffix}")
        try:
            if name != stem:
                raise ValueError(
                    "no map can have this name; rename the image in letters, digits, '-' and '_'"
                )
            with self._local(relative) as file:
                # Before reading: a file that is replaced meanwhile is read again by the next run.
                stamp = stamp_of(file)
                image = read_frame(file, self.channels, self.depth, strict=True)
            return Frame(name, index, image, stamp=stamp)
        except MemoryError:
            return Frame(name, index, image=None, error=f"{shown}: not enough memory")
        except InputError as error:  # of a download, which names the file
            return Frame(name, index, image=None, error=error.message)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            return Frame(name, index, image=None, error=f"{shown}: {reason}")


def _stem(relative: str) -> str:
    """Return the name of a frame by its file's.

    A name that no map may have (of other bytes than UTF-8, of several lines, with the drive letter
    of another system) is written in ASCII, with backslashes, which no other name has.
    """
    stem = os.path.splitext(relative)[0]
    try:
        return safe_name(stem, "a file")
    except InputError:
        return ascii(stem)[1:-1].replace(":", "\\x3a")


def stamp_of(file: Path) -> str:
    """Return the :func:`sampled_hash` of an image file that frames carry."""
    return sampled_hash(file, STAMP_STRETCHES, STAMP_LENGTH)
