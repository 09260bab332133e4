"""Images, videos and recordings under URLs."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path, PurePosixPath

from segunc.core.files import frame_order
from segunc.core.urls import (
    CONNECTIONS,
    Download,
    RemoteFile,
    download,
    download_folder,
    has_wildcard,
    list_remote,
    remembered,
    remote_file,
    root_of,
    shown_url,
)
from segunc.data.channels import COLOUR
from segunc.data.image_files import ARRAY_SUFFIXES, IMAGE_SUFFIXES, is_hidden
from segunc.data.images import label_rank
from segunc.frames.image_source import ImageSource, stamp_of
from segunc.frames.listing import UNREAD_SUFFIXES, Listing, is_video
from segunc.frames.recordings import RECORDING_SUFFIXES, is_bag
from segunc.frames.source import ALL_FRAMES, Frame, Kind, Selection, Skip


class RemoteImages(ImageSource):
    """Image files under a URL, each downloaded when its turn comes.

    Args:
        kind: of the input.
        url: what was opened, without secrets.
        files: of the images, by their paths relative to the root of the URL.
        selection: which of them are taken.
        channels: of the images, as the network takes them.
    """

    def __init__(
        self,
        kind: Kind,
        url: str,
        files: Mapping[str, RemoteFile],
        selection: Selection = ALL_FRAMES,
        channels: int = COLOUR,
    ) -> None:
        root = url.rpartition("/")[0] if kind == "image" else root_of(url)
        super().__init__(kind, url, root, files, selection, channels)
        self._remote = files
        self._coming: dict[str, Future[Download]] = {}

    def frames(self, skip: Skip | None = None) -> Iterator[Frame]:
        """Yield frames in order, while the next files are downloaded in advance."""
        wanted: deque[tuple[int, str, str]] = deque()
        for index, relative in enumerate(self._files):
            name = self.name_of(index) or ""
            if skip is None or not skip(index, name):
                wanted.append((index, name, relative))
        coming: deque[Future[Download]] = deque()
        pool = ThreadPoolExecutor(CONNECTIONS, "download")
        try:
            for number, (index, name, relative) in enumerate(wanted):
                for _, _, later in islice(wanted, number + len(coming), number + CONNECTIONS):
                    coming.append(pool.submit(download, self._remote[later]))
                self._coming[relative] = coming.popleft()
                yield self._read(index, name, relative)
        finally:
            pool.shutdown(cancel_futures=True)
            for left in [*coming, *self._coming.values()]:
                if not left.cancelled() and left.exception() is None:
                    left.result().close()
            self._coming.clear()

    @contextlib.contextmanager
    def _local(self, relative: str) -> Iterator[Path]:
        with self._coming.pop(relative).result() as local:
            yield local.path

    def stamp(self, index: int) -> str | None:
        """Return the stamp of a file.

        Raises:
            InputError: the server does not answer. A finished frame is not given up for that.
        """
        return remembered(self._remote[self._files[index]], stamp_of)


def rank_of_remote(files: Mapping[str, RemoteFile], path: Path) -> int:
    """Return :func:`segunc.data.images.label_rank` of one of the files by its relative path."""
    with download(files[path.as_posix()]) as local:
        return label_rank(local.path)


def remote_kind(url: str) -> Kind:
    """Return what a URL without a topic names, by its wildcards and the ending of its name."""
    if has_wildcard(url):
        return "glob"
    path = PurePosixPath(shown_url(url))
    if is_video(path):
        return "video"
    suffixes = (*IMAGE_SUFFIXES, *ARRAY_SUFFIXES)
    return "image" if path.suffix.lower() in suffixes else "folder"


def is_remote_recording(url: str, topic: str | None) -> bool:
    """Return whether a URL, or a URL and its topic, stand for a recording."""
    return topic is not None or PurePosixPath(shown_url(url)).suffix.lower() in RECORDING_SUFFIXES


def local_input(url: str) -> tuple[Path, Download | None]:
    """Return a copy of what a URL names, and what holds it in the cache.

    A bag of ROS 2 is a folder, which stays as long as this process.
    """
    suffix = PurePosixPath(shown_url(url)).suffix.lower()
    if is_video(PurePosixPath(shown_url(url))) or suffix in RECORDING_SUFFIXES:
        local = download(remote_file(url))
        return local.path, local
    return download_folder(url), None


def list_remote_input(url: str) -> tuple[Listing, dict[str, RemoteFile]]:
    """Return what a URL holds by kinds, with paths relative to its root, and the image and video
    files by these paths.
    """
    if remote_kind(url) == "image":
        file = remote_file(url).described()
        name = file.url.rpartition("/")[2]
        if Path(name).suffix.lower() in ARRAY_SUFFIXES:
            return Listing(Path(), arrays=[Path(name)]), {name: file}
        return Listing(Path(), images=[Path(name)]), {name: file}
    files = list_remote(url)
    listing = Listing(Path(), is_bag=not has_wildcard(url) and is_bag(files.keys()))
    root = Path()
    for name in sorted(files, key=frame_order):
        path = Path(name)
        if is_hidden(path, root):
            continue
        if path.suffix.lower() in IMAGE_SUFFIXES:
            listing.images.append(path)
        elif path.suffix.lower() in ARRAY_SUFFIXES:
            listing.arrays.append(path)
        elif is_video(path):
            is_deeper = not has_wildcard(url) and path.parent != root
            videos = listing.deeper if is_deeper else listing.videos
            videos.append(path)
        elif path.suffix.lower() in UNREAD_SUFFIXES:
            listing.unread.append(path)
    wanted = {path.as_posix() for path in (*listing.images, *listing.arrays, *listing.videos)}
    return listing, {name: file for name, file in files.items() if name in wanted}
