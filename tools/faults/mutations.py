"""Damage to the bytes of a file: any, and what hurts a format most. All of it follows from a generator."""

from __future__ import annotations

import contextlib
import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np

Random = np.random.Generator
Mutation = Callable[[bytes, Random], bytes]

CANARY = b"{class_path: tools.faults.canary.Canary, init_args: {}}"
"""A class that nothing may import."""
PNG = b"\x89PNG\r\n\x1a\n"
HARD_NUMBERS = (
    0,
    -1,
    1,
    2,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**60,
    10**30,
    -(10**30),
    0.5,
    1e308,
    5e-324,
)
HARD_TEXTS = (
    *(
        "",
        ".",
        "..",
        "../x",
        "../../../../etc/passwd",
        "/etc/passwd",
        "C:\\x",
        "a\\b",
        "a/b",
        "\0",
        "a\nb",
        "x" * 300,
        "ü",
        "\udcff",
    ),
    *("=1+1", "<script>alert(1)</script>", "%s%n", "__class__", "nan", "\u202e", "\x1b[31m", "x" * 100_000),
)
WORDS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 100_000, 30_000)


def some_place(data: bytes, random: Random) -> int:
    """A place in the bytes; in every second case among the first 64, where headers are."""
    return int(random.integers(0, max(1, min(len(data), 64 if random.random() < 0.5 else len(data)))))


def flip_bits(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(int(random.choice([1, 1, 1, 2, 8]))):
        if changed:
            changed[some_place(data, random)] ^= 1 << int(random.integers(8))
    return bytes(changed)


def change_bytes(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(int(random.choice([1, 2, 4, 16]))):
        if changed:
            changed[some_place(data, random)] = int(random.choice([0, 0x7F, 0x80, 0xFF, int(random.integers(256))]))
    return bytes(changed)


def cut(data: bytes, random: Random) -> bytes:
    return data[: int(random.integers(0, len(data) + 1))]


def cut_out(data: bytes, random: Random) -> bytes:
    start, end = sorted(random.integers(0, len(data) + 1, 2).tolist())
    return data[:start] + data[end:]


def append(data: bytes, random: Random) -> bytes:
    return data + random.bytes(int(random.integers(1, 4096))) * int(random.choice([1, 1, 100]))


def repeat(data: bytes, random: Random) -> bytes:
    start, end = sorted(random.integers(0, len(data) + 1, 2).tolist())
    return data[:end] + data[start:end] * int(random.choice([1, 2, 50])) + data[end:]


def swap(data: bytes, random: Random) -> bytes:
    a, b, c, d = sorted(random.integers(0, len(data) + 1, 4).tolist())
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def blank(data: bytes, random: Random) -> bytes:
    """A stretch as a failing disk leaves it: of zeros or ones, as long as a sector."""
    start, length = some_place(data, random), int(random.choice([8, 64, 512, 4096]))
    filled = (b"\0" if random.random() < 0.7 else b"\xff") * min(length, len(data) - start)
    return data[:start] + filled + data[start + len(filled) :]


def write_number(data: bytes, random: Random) -> bytes:
    """A hard number over any field of 2, 4 or 8 bytes."""
    form = str(random.choice(["<H", ">H", "<I", ">I", "<Q", ">Q"]))
    place, size = some_place(data, random), struct.calcsize(form)
    if place + size > len(data):
        return data[:place]
    number = (
        int(random.choice(np.array(WORDS))) if size < 8 else (1 << int(random.integers(64))) - int(random.integers(2))
    )
    return data[:place] + struct.pack(form, number % (1 << 8 * size)) + data[place + size :]


ANY = (flip_bits, flip_bits, change_bytes, cut, cut_out, append, repeat, swap, blank, write_number)


# -- PNG: damage below a checksum that fits, so that it reaches the decoder ------------------------------------------------------


def png_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Kind and content of the chunks of a whole PNG."""
    chunks, place = [], len(PNG)
    while place + 12 <= len(data):
        length = struct.unpack_from(">I", data, place)[0]
        chunks.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + length]))
        place += 12 + length
    return chunks


def png_of(chunks: list[tuple[bytes, bytes]]) -> bytes:
    return PNG + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def png_header(data: bytes, random: Random) -> bytes:
    """Another size, depth or colour type in IHDR: 100,000 x 100,000, for instance."""
    chunks = png_chunks(data)
    if not chunks or len(chunks[0][1]) != 13:
        return cut(data, random)
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    hard = (0, 1, 30_000, 65_500, 100_000, 2**31 - 1, 2**32 - 1)
    if random.random() < 0.6:
        width, height = (int(random.choice(hard)) if random.random() < 0.7 else one for one in (width, height))
    else:
        place = int(random.integers(5))
        rest[place] = int(random.choice([0, 1, 2, 3, 4, 6, 8, 16, 32, 255]))
    return png_of([(b"IHDR", struct.pack(">IIBBBBB", width, height, *rest)), *chunks[1:]])


def png_body(data: bytes, random: Random) -> bytes:
    """Any damage to one chunk, with its checksum made to fit."""
    chunks = png_chunks(data)
    if not chunks:
        return flip_bits(data, random)
    place = int(random.integers(len(chunks)))
    kind, body = chunks[place]
    if kind == b"IDAT" and random.random() < 0.5:
        pixels = ANY[int(random.integers(len(ANY)))](zlib.decompress(body), random) if len(body) < 1 << 20 else body
        chunks[place] = kind, zlib.compress(pixels)
    else:
        chunks[place] = kind, ANY[int(random.integers(len(ANY)))](body, random)
    return png_of(chunks)


def png_chunk_order(data: bytes, random: Random) -> bytes:
    """A chunk left out, twice, elsewhere, or a foreign one."""
    chunks = png_chunks(data)
    if not chunks:
        return repeat(data, random)
    what, place = int(random.integers(4)), int(random.integers(len(chunks)))
    if what == 0:
        del chunks[place]
    elif what == 1:
        chunks.insert(place, chunks[place])
    elif what == 2:
        chunks.insert(int(random.integers(len(chunks))), chunks.pop(place))
    else:
        kind = [b"PLTE", b"tRNS", b"acTL", b"eXIf", b"iCCP", b"zTXt", b"gAMA"][int(random.integers(7))]
        chunks.insert(place, (kind, random.bytes(int(random.integers(0, 800)))))
    return png_of(chunks)


# -- JPEG, TIFF ----------------------------------------------------------------------------------------------------------------------


def jpeg_header(data: bytes, random: Random) -> bytes:
    """Another height, width, precision or number of components in the frame header."""
    place = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    if place < 0:
        return flip_bits(data, random)
    field, number = (
        (place + 5, 2) if random.random() < 0.4 else (place + 7, 2) if random.random() < 0.7 else (place + 9, 1)
    )
    return (
        data[:field]
        + int(random.choice([0, 1, 255, 65500, 65535]) % 256**number).to_bytes(number, "big")
        + data[field + number :]
    )


def tiff_tag(data: bytes, random: Random) -> bytes:
    """A hard number in one entry of the first directory."""
    order = "<" if data[:2] == b"II" else ">"
    if len(data) < 8:
        return data
    start = struct.unpack_from(f"{order}I", data, 4)[0]
    if start + 2 > len(data):
        return flip_bits(data, random)
    place = start + 2 + 12 * int(random.integers(max(1, struct.unpack_from(f"{order}H", data, start)[0])))
    if place + 12 > len(data):
        return cut(data, random)
    field = place + int(random.choice([0, 2, 4, 8]))
    return data[:field] + struct.pack(f"{order}I", int(random.choice(np.array(WORDS)))) + data[field + 4 :]


# -- NumPy, safetensors, HDF5 -------------------------------------------------------------------------------------------------------


def npy_with(header: str) -> bytes:
    text = header.encode("latin-1")
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def npy_header(data: bytes, random: Random) -> bytes:
    """Another shape, type or order in the header of an ``.npy``."""
    shapes = (
        "()",
        "(0,)",
        "(100000,100000)",
        "(-1,4)",
        "(4,)",
        "(2,2,2,2)",
        "(4611686018427387904,4)",
        "(1e9,1)",
        "'x'",
        "(" * 50 + ")" * 50,
    )
    types = (
        "'<f4'",
        "'|O'",
        "'<U9'",
        "'<c8'",
        "'>f2'",
        "'|V1000000'",
        "'<M8[s]'",
        "[('a','<f4')]",
        "'|b1'",
        "None",
        "'<i8'",
    )
    shape, kind = str(random.choice(shapes)), str(random.choice(types)) if random.random() < 0.5 else "'<f2'"
    order = str(random.choice(["True", "False", "2"]))
    return npy_with(f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}") + data[128:]


def npz_bomb(data: bytes, random: Random) -> bytes:
    """An array of gigabytes of one value, deflated to a megabyte or so, in the place of one of an archive."""
    count = int(random.choice([1 << 20, 1 << 28, 1 << 30]))
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        names = old.namelist()
        victim = names[int(random.integers(len(names)))]
        for name in names:
            if name == victim:
                kind = str(random.choice(["'<f8'", "'<U100'", "'<i8'"]))
                shape = f"({count},)" if random.random() < 0.5 else f"({max(1, count >> 10)},1024)"
                with new.open(name, "w", force_zip64=True) as file:
                    file.write(npy_with(f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}"))
                    for _ in range(min(count, 1 << 26) >> 22):  # the claim is larger than what follows
                        file.write(bytes(1 << 22))
            else:
                new.writestr(name, old.read(name))
    return made.getvalue()


def npz_member(data: bytes, random: Random) -> bytes:
    """A member that is damaged, left out, renamed or of another type, in an archive whose checksums fit."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        names = old.namelist()
        victim = names[int(random.integers(len(names)))]
        for name in names:
            body = old.read(name)
            if name == victim:
                what = random.random()
                if what < 0.15:
                    continue
                if what < 0.25:
                    name = str(random.choice(["../x.npy", "/x.npy", "", "x"]))
                body = (npy_header if what < 0.6 else ANY[int(random.integers(len(ANY)))])(body, random)
            new.writestr(zipfile.ZipInfo(name), body)
    return made.getvalue()


def safetensors_header(data: bytes, random: Random) -> bytes:
    """Another length of the header, or other numbers in it."""
    length = struct.unpack_from("<Q", data)[0] if len(data) >= 8 else 0
    if random.random() < 0.3 or length > len(data):
        return struct.pack("<Q", int(random.choice([0, 1, 2**20, 2**40, 2**60, 2**63])) % 2**64) + data[8:]
    text = json_value(data[8 : 8 + length], random)
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def hdf5_file(data: bytes, random: Random) -> bytes:
    """A file whose map lies elsewhere, is encoded by a filter, is far larger than the file, or is of another type."""
    made = io.BytesIO()
    with h5py.File(made, "w") as file:
        what = int(random.integers(8))
        if what == 0:
            file["value"] = h5py.ExternalLink("/etc/passwd", "value")
        elif what == 1:
            file.create_dataset("value", (16, 16), "u1", external=[("/etc/passwd", 0, 256)])
        elif what == 2:
            space, how = h5py.h5s.create_simple((4, 4)), h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            how.set_obj_track_times(False)  # the same bytes at all times, which create_virtual_dataset does not give
            how.set_virtual(space, b"other.h5", b"value", space)
            h5py.h5d.create(file.id, b"value", h5py.h5t.IEEE_F32LE, space, how)
        elif what == 3:
            side = int(random.choice([1 << 12, 1 << 16, 1 << 20, 1 << 31]))
            file.create_dataset("value", (side, side), "f4", chunks=(8, 8))
        elif what == 4:
            file.create_dataset("value", data=np.zeros((4096, 4096), np.float64), compression=9, chunks=(4096, 4096))
        elif what == 5:
            file.create_dataset("value", data=["text"] * 3, dtype=h5py.string_dtype())
        elif what == 6:
            file["value"] = h5py.SoftLink("/value")
        else:
            file.create_dataset("value", dtype="f4", data=h5py.Empty("f4"))
    return made.getvalue()


# -- text: JSON, JSON lines, YAML, CSV ------------------------------------------------------------------------------------------------


def hard_value(random: Random) -> Any:
    """A value that nobody expects."""
    choice = random.random()
    if choice < 0.35:
        return HARD_NUMBERS[int(random.integers(len(HARD_NUMBERS)))]
    if choice < 0.6:
        return HARD_TEXTS[int(random.integers(len(HARD_TEXTS)))]
    plain = (
        None,
        True,
        False,
        [],
        {},
        [[]],
        {"": {}},
        math.nan,
        math.inf,
        -math.inf,
        [1, "a", None],
        {"a": 1},
        [1e400],
        {"..": {}},
    )
    return plain[int(random.integers(len(plain)))]


def change_value(value: Any, random: Random) -> Any:
    """A copy with one change somewhere in it."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        names = list(value)
        name = names[int(random.integers(len(names)))]
        what = random.random()
        if what < 0.12:
            return {key: one for key, one in value.items() if key != name}
        if what < 0.2:
            return {
                (str(HARD_TEXTS[int(random.integers(len(HARD_TEXTS)))]) if key == name else key): one
                for key, one in value.items()
            }
        if what < 0.25:
            return {**value, str(HARD_TEXTS[int(random.integers(len(HARD_TEXTS)))]): hard_value(random)}
        if what < 0.32:
            other = names[int(random.integers(len(names)))]
            return {**value, name: value[other], other: value[name]}
        return {**value, name: change_value(value[name], random)}
    if isinstance(value, list) and value and random.random() < 0.85:
        place, what = int(random.integers(len(value))), random.random()
        if what < 0.15:
            return value[:place] + value[place + 1 :]
        if what < 0.3:
            return [*value[:place], value[place], *value[place:]]
        return [*value[:place], change_value(value[place], random), *value[place + 1 :]]
    if isinstance(value, int | float) and not isinstance(value, bool) and random.random() < 0.4:
        return value + int(random.choice([-1, 1])) if random.random() < 0.5 else -value
    return hard_value(random)


def dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")


def json_value(data: bytes, random: Random) -> bytes:
    """One value of a JSON object swapped, removed, renamed or made absurd; in JSON lines, of one line."""
    try:
        return dump(change_value(json.loads(data), random)) + b"\n"
    except ValueError:
        lines = data.splitlines(keepends=True)
    if not lines:
        return data
    place = int(random.integers(len(lines)))
    try:
        lines[place] = dump(change_value(json.loads(lines[place]), random)) + b"\n"
    except ValueError:
        lines[place] = flip_bits(lines[place], random)
    return b"".join(lines)


def json_nesting(data: bytes, random: Random) -> bytes:
    """Thousands of brackets as the whole, or in the place of a value."""
    depth, pair = int(random.choice([100, 2_000, 100_000])), (b"[", b"]") if random.random() < 0.5 else (b'{"a":', b"}")
    nested = pair[0] * depth + b"1" + (pair[1] * depth if random.random() < 0.7 else b"")
    colon = data.find(b":", some_place(data, random))
    return nested if colon < 0 or random.random() < 0.3 else data[: colon + 1] + nested + b"}"


def text_bytes(data: bytes, random: Random) -> bytes:
    """Bytes that are no UTF-8, another encoding, a mark at the beginning, or a NUL."""
    place = some_place(data, random)
    what = int(random.integers(5))
    if what == 0:
        return data[:place] + b"\xff\xfe\xc0" + data[place:]
    if what == 1:
        return data.decode("utf-8", "replace").encode("utf-16")
    if what == 2:
        return b"\xef\xbb\xbf" + data
    if what == 3:
        return data[:place] + b"\0" + data[place:]
    return data.replace(b"\n", b"\r")


def lines_moved(data: bytes, random: Random) -> bytes:
    """A line left out, twice, elsewhere, or without its end."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    place, what = int(random.integers(len(lines))), int(random.integers(4))
    if what == 0:
        del lines[place]
    elif what == 1:
        lines.insert(place, lines[place])
    elif what == 2:
        lines.insert(int(random.integers(len(lines))), lines.pop(place))
    else:
        lines[place] = lines[place].rstrip(b"\r\n")
    return b"".join(lines)


def cell(data: bytes, random: Random) -> bytes:
    """One cell of a CSV, or one scalar of a YAML, made absurd."""
    lines = data.decode("utf-8", "replace").splitlines(keepends=True)
    if not lines:
        return data
    place = int(random.integers(len(lines)))
    value = hard_value(random)
    text = value if isinstance(value, str) else json.dumps(value)
    for separator in (",", ": "):
        if separator in lines[place]:
            parts = lines[place].rstrip("\n").split(separator)
            parts[int(random.integers(len(parts)))] = text
            lines[place] = separator.join(parts) + "\n"
            break
    return "".join(lines).encode("utf-8", "surrogateescape")


def yaml_trap(data: bytes, random: Random) -> bytes:
    """Deep nesting, aliases that multiply, tags of Python, and other traps of YAML."""
    traps = (
        *(
            b"a: " * 3 + b"1",
            b"trainer: {callbacks: [" + CANARY + b"], logger: " + CANARY + b"}",
            b"trainer: {strategy: " + CANARY + b", profiler: " + CANARY + b"}",
            b"network: " + CANARY,
            b"network: tools.faults.canary.Canary",
            b"network: {options: {x: " + CANARY + b"}}",
            b"[" * 3_000,
            b"{a: " * 3_000,
            b"- " * 20_000,
            b"? " * 500,
            b"!!python/object/apply:os.system ['true']",
        ),
        b"\n".join(b"a%d: &a%d [%s]" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9) if n else b"1") for n in range(9)),
        *(
            b"a: &a [*a]",
            b"data: !!python/name:os.system",
            b"%YAML 9.9\n---\na: 1",
            b"<<: *x",
            b"a: 1\na: 2",
            b"data: &d\n  data: *d\n",
        ),
        *(
            b"data: {root: !!binary '////', dataset: toy}",
            b"\t- x",
            b"seed: 0x" + b"f" * 5_000,
            b"seed: " + b"9" * 5_000,
            b"seed: 1:1:1",
        ),
    )
    trap = traps[int(random.integers(len(traps)))]
    return trap if random.random() < 0.4 else data + b"\n" + trap + b"\n"


OF_KIND: dict[str, tuple[Mutation, ...]] = {
    "png": (png_header, png_header, png_body, png_body, png_chunk_order),
    "jpg": (jpeg_header, jpeg_header),
    "tif": (tiff_tag, tiff_tag, tiff_tag),
    "npy": (npy_header, npy_header, npy_header),
    "npz": (npz_member, npz_member, npz_member, npz_bomb),
    "safetensors": (safetensors_header, safetensors_header, safetensors_header),
    "hdf5": (hdf5_file, hdf5_file),
    "json": (*[json_value] * 12, json_nesting, text_bytes),
    "jsonl": (*[json_value] * 8, json_nesting, text_bytes, lines_moved, lines_moved),
    "yaml": (*[cell] * 8, yaml_trap, yaml_trap, text_bytes, lines_moved, lines_moved),
    "csv": (*[cell] * 8, text_bytes, lines_moved, lines_moved),
}
"""Mutations of a format, beside those of any bytes."""
ALIKE = {"jpeg": "jpg", "tiff": "tif", "h5": "hdf5"}


def mutate(data: bytes, kind: str, random: Random) -> bytes:
    """Damaged bytes of a file whose ending is ``kind``: by one mutation, seldom by two or three."""
    own = OF_KIND.get(ALIKE.get(kind, kind), ())
    for number in range(int(random.choice([1, 1, 1, 1, 1, 2, 3]))):
        table = own if own and number == 0 and random.random() < 0.6 else ANY
        with contextlib.suppress(
            ValueError, OverflowError, KeyError, RecursionError, zlib.error, struct.error, zipfile.BadZipFile
        ):
            data = table[int(random.integers(len(table)))](
                data, random
            )  # what does not have the form of its kind stays
    return data
