"""The example in C++ reads an image as ``predict`` does. A stub stands in for ONNX Runtime: its
entropy is the red plane of the input, so the codes say which pixels the program has read.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from segunc.frames.sources import open_source

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "onnx" / "main.cpp"
STUB = """
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

enum { ORT_LOGGING_LEVEL_WARNING, OrtArenaAllocator, OrtMemTypeDefault };
enum { ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT };

namespace Ort {
struct Env {
    Env(int, const char*) {}
};
struct SessionOptions {};
struct RunOptions {
    explicit RunOptions(std::nullptr_t) {}
};
struct Shape {
    std::vector<int64_t> GetShape() const { return {1, 3, -1, -1}; }
    int GetElementType() const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
};
struct TypeInfo {
    Shape GetTensorTypeAndShapeInfo() const { return {}; }
};
struct MemoryInfo {
    static MemoryInfo CreateCpu(int, int) { return {}; }
};
struct Value {
    std::vector<float> values;
    template <class T>
    static Value CreateTensor(const MemoryInfo&, T* data, size_t size, const int64_t*, size_t) {
        return {std::vector<float>(data, data + size)};
    }
    template <class T>
    const T* GetTensorData() const { return values.data(); }
};
struct Session {
    Session(const Env&, const char*, const SessionOptions&) {}
    TypeInfo GetInputTypeInfo(size_t) const { return {}; }
    using Names = const char* const*;
    std::vector<Value> Run(const RunOptions&, Names, const Value* inputs, size_t, Names, size_t) {
        return {inputs[0]};
    }
};
}  // namespace Ort
"""
SIZE = (6, 10)
GRAY, RGB, PALETTE, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6  # colour types of PNG
LINEAR = (b"gAMA", struct.pack(">I", 100_000))
TIFF = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"  # of EXIF, up to the value of orientation


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(
    values: npt.NDArray[np.integer], colour: int, depth: int, *more: tuple[bytes, bytes]
) -> bytes:
    """Return a PNG of pixels, with more chunks before them."""
    height, width = values.shape[:2]
    rows = values.astype(">u2" if depth == 16 else "u1").reshape(height, -1)
    pixels = b"".join(b"\0" + row.tobytes() for row in rows)
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = [(b"IHDR", head), *more, (b"IDAT", zlib.compress(pixels)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*entry) for entry in chunks)


def pixels(channels: int, largest: int = 255) -> npt.NDArray[np.integer]:
    generator = np.random.default_rng(0)
    return generator.integers(0, largest + 1, (*SIZE, channels))


def transparent(values: npt.NDArray[np.integer]) -> tuple[bytes, bytes]:
    """Return the chunk that makes the colour of the first pixel transparent."""
    return b"tRNS", struct.pack(f">{values.shape[2]}H", *values[0, 0].tolist())


COLOURS = (b"PLTE", bytes(range(60)))
PICTURES = {
    "rgb": png(pixels(3), RGB, 8),
    "gray": png(pixels(1), GRAY, 8),
    "gamma": png(pixels(3), RGB, 8, LINEAR),
    "gray with gamma": png(pixels(1), GRAY, 8, LINEAR),
    "alpha": png(pixels(4), RGB_ALPHA, 8),
    "gray with alpha": png(pixels(2), GRAY_ALPHA, 8),
    "16 bits": png(pixels(3, 65535), RGB, 16),
    "gray of 16 bits": png(pixels(1, 65535), GRAY, 16),
    "transparent colour": png(pixels(3), RGB, 8, transparent(pixels(3))),
    "palette": png(pixels(1, 19), PALETTE, 8, COLOURS, (b"tRNS", bytes(20))),
    "upright": png(pixels(3), RGB, 8, (b"eXIf", TIFF + b"\x01\0\0\0\0\0\0\0")),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built with the stub."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "onnxruntime_cxx_api.h").write_text(STUB)
    words = [compiler, "-std=c++17", f"-I{folder}", str(EXAMPLE)]
    probe = subprocess.run([*words, "-E"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"a header is missing: {probe.stderr.splitlines()[0]}")
    subprocess.run([*words, "-lpng", "-o", str(folder / "entropy")], check=True, timeout=120)
    return folder / "entropy"


@pytest.mark.parametrize("kind", PICTURES)
def test_a_png_has_the_pixels_that_predict_reads(program: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "frame.png"
    path.write_bytes(PICTURES[kind])
    (frame,) = open_source(path).frames()
    assert frame.image is not None
    red = frame.image[..., 0].astype(np.float32) / np.float32(255)
    out = tmp_path / "entropy.png"
    subprocess.run([program, "model.onnx", path, out], check=True, timeout=60)
    codes = cv2.imread(str(out), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(codes, np.rint(np.sqrt(red) * np.float32(65535)))


@pytest.mark.parametrize("order", ["II", "MM"])
def test_an_image_that_is_turned_is_refused(program: Path, tmp_path: Path, order: str) -> None:
    """predict turns it upright."""
    exif = TIFF + b"\x06\0\0\0\0\0\0\0"
    if order == "MM":
        exif = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    path = tmp_path / "frame.png"
    path.write_bytes(png(pixels(3), RGB, 8, (b"eXIf", exif)))
    (frame,) = open_source(path).frames()
    assert frame.image is not None
    assert frame.image.shape == (*SIZE[::-1], 3)
    words = [program, "model.onnx", path, tmp_path / "entropy.png"]
    refused = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"error: {path} has the EXIF orientation 6, and this program")
    assert not (tmp_path / "entropy.png").exists()


@pytest.mark.parametrize("content", [b"", b"no image\n", PICTURES["rgb"][:-40]])
def test_a_damaged_file_is_named(program: Path, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "frame.png"
    path.write_bytes(content)
    words = [program, "model.onnx", path, tmp_path / "entropy.png"]
    refused = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"error: {path}: ")
    assert len(refused.stderr.splitlines()) == 1
