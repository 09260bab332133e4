#!/bin/sh
# The wheel and the source archive of the last commit: tools/wheel.sh OUT [PYTHON], in a checkout.
# The wheel has the same bytes whoever builds it where: HEAD is unpacked with the modes of a umask of 022 into an empty folder and built there
# by this environment's setuptools, without a network. Times in the wheel are the commit's, and nothing is compressed, since compressed
# bytes would be those of the machine's zlib. The source archive carries times of the build.
set -eu
umask 022
python=${2:-python} out=$(mkdir -p "$1" && cd "$1" && pwd) tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
git -c tar.umask=0022 archive HEAD | tar -x -C "$tree"
git rev-parse HEAD > "$tree/segunc/core/commit.txt"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
test -z "$(git status --porcelain)" || echo "uncommitted changes are not in it" >&2
cd "$tree"
"$python" -c 'import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])' "$out" >/dev/null 2>&1
"$python" -c 'import sys; from setuptools import build_meta
build_meta.build_wheel(sys.argv[1], {"--build-option": ["--compression=stored"]})' "$out" >/dev/null
cd "$out" && sha256sum -- *.tar.gz *.whl
