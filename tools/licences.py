"""The licences of the default install: a page of them, and whether one is copyleft that is not named here with its reason.

    python -m tools.licences > docs/licences.md
    python -m tools.licences --check

`--check` ends with 1 where a package or something inside a wheel has a licence that is neither permissive nor named below, or where
a licence is not known. It reads the environment it runs in (see tools/default_install.py); it is no lawyer's opinion.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from collections.abc import Iterator

from tools.default_install import NOT_STATED, Inside, Package, default_install, installed

NVIDIA = "LicenseRef-NVIDIA-Proprietary"
LGPL = "LGPL-2.1-or-later"
LGPL3 = "LGPL-3.0-or-later OR GPL-2.0-or-later"
GPL = "GPL-2.0-or-later"
GCC = "GPL-3.0-or-later WITH GCC-exception-3.1"
NOTICE = (
    "0BSD Apache-2.0 BSD-2-Clause BSD-3-Clause BSD-3-Clause-Clear BSL-1.0 CC0-1.0 FTL IJG ISC LicenseRef-BSD LicenseRef-HDF5 MIT MIT-CMU "
    "MIT-open-group OpenSSL PSF-2.0 Zlib libpng-2.0 libtiff"
)
PERMISSIVE = {"Apache-2.0 WITH LLVM-exception", *NOTICE.split()}
"""What may be used, changed and passed on with no more than a notice."""
LIBRARIES = {
    name: licence
    for licence, names in {
        "0BSD": "liblzma",
        "Apache-2.0": "libopencore",
        "BSD-2-Clause": "libaec libaom libavif libdav1d libopenjp2 libsz",
        "BSD-3-Clause": "libopus libopenblasp libscipy_openblas libscipy_openblas64 libsharpyuv libvpx libwebp libwebpdemux libwebpmux protoc protoc-3.21.12.0",
        "BSD-3-Clause-Clear": "libSvtAv1Enc",
        "BSD-3-Clause OR GPL-2.0-or-later": "libzstd",
        "FTL OR GPL-2.0-or-later": "libfreetype",
        GCC: "libgfortran libgomp",
        "IJG AND BSD-3-Clause AND Zlib": "libjpeg",
        GPL: "libx264 libx265",
        LGPL: "libasound libavcodec libavdevice libavfilter libavformat libavutil libgnutls libmp3lame libquadmath libswresample libswscale",
        LGPL3: "libgmp libhogweed libnettle libunistring",
        "LicenseRef-HDF5": "libhdf5 libhdf5_hl",
        "MIT": "libbrotlicommon libbrotlidec libdrm libharfbuzz liblcms2 libvpl libxcb",
        "MIT-open-group": "libXau",
        NVIDIA: "cuobjdump libcheckpoint libcudart libcupti libnvjpeg libnvperf_host libnvperf_target libpcsamplingutil nvdisasm ptxas ptxas-blackwell",
        "OpenSSL": "libcrypto libssl",
        "Zlib": "libz",
        "libpng-2.0": "libpng16",
        "libtiff": "libtiff",
    }.items()
    for name in names.split()
}
"""Licences of libraries and programs, which their files do not say: as the texts in the wheels or their authors state them."""
_FFMPEG = "FFmpeg and what it links; a shared library that its user may replace"
NAMED = {
    (
        "tqdm",
        "MPL-2.0 AND MIT",
    ): "asks that changes to its own files are published; nothing is changed, and the code beside it is free",
    ("cuda-toolkit", NOT_STATED): "a list of the nvidia packages, with no file of its own but metadata",
    ("autocommand", "LGPL-3.0-only"): "carried by setuptools, which torch requires; nothing here imports it",
    ("libquadmath", LGPL): "GCC's arithmetic for Fortran; a shared library that its user may replace",
    **{
        (name, LGPL): _FFMPEG
        for name in (
            *("libavcodec", "libavdevice", "libavfilter", "libavformat", "libavutil", "libswresample", "libswscale"),
            *("libasound", "libgnutls", "libmp3lame"),
        )
    },
    **{(name, LGPL3): _FFMPEG for name in ("libgmp", "libhogweed", "libnettle", "libunistring")},
    **{
        (name, GPL): "an encoder in the wheel of PyAV, which whoever passes on passes on under the GPL"
        for name in ("libx264", "libx265")
    },
}
"""What has no permissive licence, or states none, by name and licence, and why it may stay. No name helps a package that is itself of the GPL's family."""
BY_LICENCE = {
    GCC: "GCC's runtime library; the exception lets a program under any licence carry it",
    NVIDIA: "proprietary and free to use; required by torch and triton for CUDA, on Linux",
}
WORDS = re.compile(
    r"GNU (?:Affero |Lesser |Library )?General Public|\b[AL]?GPL|Mozilla Public|\bMPL|\bEPL\b|\bCDDL\b|\bEUPL\b",
    re.IGNORECASE,
)
TEXTS = re.compile(r"licen[cs]e|copying|notice|copyright|3rd|third", re.IGNORECASE)
READ = {
    "nvidia-nvtx": "Apache-2.0 with LLVM's exception, which names the GPL",
    "aiohappyeyeballs": "the text of the PSF licence, which says that it is compatible with the GPL",
    "matplotlib": "FreeType: FTL or GPL-2.0-or-later, its user's choice",
    "numpy": "libgfortran and libquadmath, as above",
    "nvidia-": "one text for all of the CUDA toolkit; CUDA-GDB (GPL) and the Eclipse plugin (EPL), which it names, are in none of these wheels",
    "opencv-python-headless": "FFmpeg, as above; Qt, libgmp, libidn2 and libunistring (LGPL) are in wheels for macOS or with windows",
    "pillow": "FreeType: FTL or GPL; of XZ its tools and scripts, of which the wheel has the library alone",
    "scipy": "libgfortran and libquadmath, as above",
    "setuptools": "autocommand, as above; code of validate-pyproject in `setuptools/config`, MPL-2.0; nothing here imports it",
    "torch": "NVTX and OpenMP of LLVM: Apache-2.0 with LLVM's exception, which names the GPL",
    "tqdm": "its own, as above",
    "typing-extensions": "the text of the PSF licence, which says that it is compatible with the GPL",
}
"""Packages, by the beginnings of their names, whose licence texts name a copyleft licence, and what reading them has found."""


def permissive(licence: str) -> bool:
    """Whether an SPDX expression leaves a choice of permissive licences for each part. Brackets are left out, which never asks for less."""
    parts = licence.replace("(", "").replace(")", "").split(" AND ")
    return all(any(choice in PERMISSIVE for choice in part.split(" OR ")) for part in parts)


def licence_of(inside: Inside) -> str:
    """What the metadata of something inside a wheel say, or the list here."""
    return inside.licence or LIBRARIES.get(inside.name, NOT_STATED)


def reason(name: str, licence: str) -> str | None:
    """Why something may stay, ``""`` where its licence is permissive, None where nothing speaks for it."""
    return "" if permissive(licence) else NAMED.get((name, licence), BY_LICENCE.get(licence))


def texts(name: str) -> list[str]:
    """Licences and notices among the files of a package that name a copyleft licence, as paths from site-packages."""
    if name == "segunc":
        return []
    paths = [
        path
        for path in installed(name).files or []
        if TEXTS.search(str(path)) and path.suffix in ("", ".txt", ".md", ".rst")
    ]
    return [str(path) for path in paths if WORDS.search(path.read_binary().decode(errors="replace"))]


def found_in(name: str) -> str | None:
    """What reading the texts of a package has found, None for one that nobody has read."""
    return next(
        (found for start, found in READ.items() if name == start or (start.endswith("-") and name.startswith(start))),
        None,
    )


def refused(packages: dict[str, Package]) -> Iterator[str]:
    """A line for each package, and for each thing inside one, that may not stay."""
    for package in packages.values():
        if reason(package.name, package.licence) is None or (
            "GPL-" in package.licence and not permissive(package.licence)
        ):
            yield f"{package.name} {package.version}: {package.licence}"
        if found_in(package.name) is None:
            yield from (
                f"{text} of {package.name} {package.version}: names a copyleft licence; read it"
                for text in texts(package.name)
            )
        for inside in package.inside:
            if reason(inside.name, licence_of(inside)) is None:
                yield f"{inside.path} in {package.name} {package.version}: {licence_of(inside)}"


def environment() -> str:
    """The kind of environment that a page is of: other packages belong to another one."""
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version().rpartition('.')[0]}"


def page(packages: dict[str, Package]) -> str:
    """Both tables as Markdown: the packages, and what their wheels carry; of several equal files of a wheel, one."""
    own = [f"| {p.name} | {p.version} | {p.licence} | {reason(p.name, p.licence)} |" for p in packages.values()]
    carried = {
        f"| {p.name} | {i.name} | {i.version} | {licence_of(i)} | {reason(i.name, licence_of(i))} |": None
        for p in packages.values()
        for i in p.inside
    }
    return "\n".join(
        [
            "# Licences of the default install",
            "",
            f"Made by `make licences`: {environment()}, the versions of requirements.lock, without extras. What it means, and what it",
            "cannot see, is in [supply-chain.md](supply-chain.md). `LicenseRef-BSD`: the metadata say BSD, the clauses are in the wheel's file.",
            "",
            "| package | version | licence as its metadata state it | where not permissive: why it may stay |",
            "|---|---|---|---|",
            *own,
            "",
            "What the wheels carry inside:",
            "",
            "| package | carries | version | licence | where not permissive: why it may stay |",
            "|---|---|---|---|---|",
            *carried,
            "",
            "Packages whose own licences and notices name a copyleft licence, and what reading them has found:",
            "",
            "| package | found |",
            "|---|---|",
            *(f"| {p.name} | {found_in(p.name)} |" for p in packages.values() if texts(p.name)),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="say what may not stay, and end with 1 where there is any")
    check, packages = parser.parse_args().check, default_install()
    if not check:
        print(page(packages), end="")
        return 0
    bad = list(refused(packages))
    carried = sum(len(package.inside) for package in packages.values())
    print(
        "\n".join(bad)
        or f"{len(packages)} packages and {carried} files inside them: permissive, or named with a reason"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
