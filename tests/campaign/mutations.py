"""Damage to the bytes of a file: what any file can suffer, and what hurts its format most. All of
it follows from a generator.
"""

import contextlib
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

Random = np.random.Generator
Mutation = Callable[[bytes, Random], bytes]
PNG = b"\x89PNG\r\n\x1a\n"
WORDS = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    30_000,
    100_000,
    1 << 60,
)
HARD_VALUES: list[Any] = json.loads(r"""[
    0, -1, 1, 2, 255, 256, 65535, 65536, 2147483647, 2147483648, 4294967295, 1152921504606846976,
    1e30, 0.5, 1e308, 5e-324,
    1000000000000000000000000000000, -1000000000000000000000000000000,
    NaN, Infinity, -Infinity, 1e999,
    "", ".", "..", "../x", "../../../../etc/passwd", "/etc/passwd", "C:\\x", "a\\b", "a/b",
    "\u0000", "a\nb", "ü", "\udcff", "=1+1",
    "<script>alert(1)</script>", "%s%n", "__class__", "nan", "\u202e", "\u001b[31m",
    null, true, false, [], {}, [[]], {"": {}}, [1, "a", null], {"a": 1}, [1e400], {"..": {}}]""")
HARD_VALUES += ["x" * 300, "x" * 100_000]


def pick(values: Any, random: Random) -> Any:
    return values[int(random.integers(len(values)))]


def some_place(data: bytes, random: Random) -> int:
    """A place in the bytes; in every second case among the first 64, where headers are."""
    return int(
        random.integers(0, max(1, min(len(data), 64 if random.random() < 0.5 else len(data))))
    )


def flip_bits(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(pick([1, 1, 1, 2, 8], random) if data else 0):
        changed[some_place(data, random)] ^= 1 << int(random.integers(8))
    return bytes(changed)


def overwrite(data: bytes, random: Random) -> bytes:
    """A hard number in a field of 1 to 8 bytes, or a stretch as a failing disk leaves it, as long
    as a sector.
    """
    place, size = some_place(data, random), pick([1, 2, 4, 8], random)
    number = (pick(WORDS, random) % (1 << 8 * size)).to_bytes(size, pick(["little", "big"], random))
    written = (
        number
        if random.random() < 0.7
        else pick([b"\0", b"\xff"], random) * pick([8, 64, 512, 4096], random)
    )
    return (data[:place] + written + data[place + len(written) :])[: len(data)]


def rearrange(data: bytes, random: Random) -> bytes:
    """Bytes cut off, cut out, repeated, in another order, or with others behind them."""
    a, b, c = sorted(random.integers(0, len(data) + 1, 3).tolist())
    more = random.bytes(int(random.integers(1, 4096))) * pick([1, 100], random)
    repeated = (
        data[:b] + data[a:b] * min(pick([1, 2, 50], random), 2 + 2**26 // (b - a + 1)) + data[b:]
    )  # in bounded memory
    swapped = data[:a] + data[b:c] + data[a:b] + data[c:]
    return pick([data[:a], data[:a] + data[b:], data + more, repeated, swapped], random)


ANY = (flip_bits, overwrite, rearrange)


def png_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """Kind and content of the chunks of a whole PNG, whose damage gets a checksum that fits, so
    that it reaches the decoder.
    """
    chunks, place = [], len(PNG)
    while place + 12 <= len(data):
        length = struct.unpack_from(">I", data, place)[0]
        chunks.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + length]))
        place += 12 + length
    return chunks


def png_of(chunks: list[tuple[bytes, bytes]]) -> bytes:
    sums = (struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks)
    return PNG + b"".join(
        struct.pack(">I", len(b)) + k + b + s for (k, b), s in zip(chunks, sums, strict=True)
    )


def png_header(data: bytes, random: Random) -> bytes:
    """Another size, depth or colour type in IHDR: 100,000 x 100,000, for instance."""
    (_, header), *rest = png_chunks(data)
    fields = list(struct.unpack(">IIBBBBB", header))
    if random.random() < 0.6:
        for place in pick([(0,), (1,), (0, 1)], random):
            fields[place] = pick((0, 1, 30_000, 65_500, 100_000, 2**31 - 1, 2**32 - 1), random)
    else:
        fields[2 + int(random.integers(5))] = pick([0, 1, 2, 3, 4, 6, 8, 16, 32, 255], random)
    return png_of([(b"IHDR", struct.pack(">IIBBBBB", *fields)), *rest])


def png_body(data: bytes, random: Random) -> bytes:
    """Any damage to one chunk, or to its pixels before they are deflated, with a checksum that
    fits.
    """
    chunks = png_chunks(data)
    place = int(random.integers(len(chunks)))
    kind, body = chunks[place]
    pixels = kind == b"IDAT" and random.random() < 0.5
    body = pick(ANY, random)(zlib.decompress(body) if pixels else body, random)
    chunks[place] = kind, zlib.compress(body) if pixels else body
    return png_of(chunks)


def safetensors_header(data: bytes, random: Random) -> bytes:
    """Another length of the header, or other numbers in it."""
    length = struct.unpack_from("<Q", data)[0]
    if random.random() < 0.3:
        return struct.pack("<Q", pick([0, 1, 2**20, 2**40, 2**60, 2**63], random)) + data[8:]
    text = json_value(data[8 : 8 + length], random)
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


def change_value(value: Any, random: Random) -> Any:
    """A copy with one change somewhere in it: a value removed, renamed, doubled, swapped, shifted
    or made absurd.
    """
    if not isinstance(value, dict | list) or not value or random.random() < 0.15:
        if isinstance(value, int | float) and not isinstance(value, bool) and random.random() < 0.4:
            return pick([value - 1, value + 1, -value], random)
        return pick(HARD_VALUES, random)
    pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    place, what = int(random.integers(len(pairs))), random.random()
    name, inner = pairs[place]
    if what < 0.12:
        del pairs[place]
    elif what < 0.2:
        pairs.insert(place, (str(pick(HARD_VALUES, random)), inner))
    elif what < 0.3:
        pairs[place] = name, pick(pairs, random)[1]
    else:
        pairs[place] = name, change_value(inner, random)
    return dict(pairs) if isinstance(value, dict) else [one for _, one in pairs]


def json_value(data: bytes, random: Random) -> bytes:
    """One value of a JSON object changed; in JSON lines, of one line."""
    try:
        text = json.dumps(change_value(json.loads(data), random), ensure_ascii=False)
        return text.encode("utf-8", "surrogateescape") + b"\n"
    except ValueError:
        lines = data.splitlines(keepends=True)
        if len(lines) < 2:
            raise
        place = int(random.integers(len(lines)))
        return b"".join([*lines[:place], json_value(lines[place], random), *lines[place + 1 :]])


def text_bytes(data: bytes, random: Random) -> bytes:
    """Bytes that are no UTF-8, a NUL, another encoding, a mark at the beginning, or other ends of
    lines.
    """
    place = some_place(data, random)
    within = data[:place] + pick([b"\xff\xfe\xc0", b"\0"], random) + data[place:]
    other = data.decode("utf-8", "replace").encode("utf-16")
    return pick([within, within, other, b"\xef\xbb\xbf" + data, data.replace(b"\n", b"\r")], random)


def lines_moved(data: bytes, random: Random) -> bytes:
    """A line left out, twice, elsewhere, or without its end."""
    lines = data.splitlines(keepends=True)
    place, other = random.integers(len(lines), size=2).tolist()
    line, rest = lines[place], [*lines[:place], *lines[place + 1 :]]
    twice, elsewhere = ([*of[:other], line, *of[other:]] for of in (lines, rest))
    return b"".join(
        pick([rest, twice, elsewhere, [*lines[:place], line[:-1], *lines[place + 1 :]]], random)
    )


def cell(data: bytes, random: Random) -> bytes:
    lines = data.decode("utf-8", "replace").splitlines(keepends=True)
    place, value = int(random.integers(len(lines))), pick(HARD_VALUES, random)
    separator = next((one for one in (",", ": ") if one in lines[place]), "\n")
    parts = lines[place].rstrip("\n").split(separator)
    parts[int(random.integers(len(parts)))] = value if isinstance(value, str) else json.dumps(value)
    lines[place] = separator.join(parts) + "\n"
    return "".join(lines).encode("utf-8", "surrogateescape")


CANARY = "{class_path: tests.campaign.canary.Canary, init_args: {}}"
YAML_TRAPS = ["[" * 3_000, f"seed: {'9' * 5_000}", "a: &a [*a]", "data: &d\n  data: *d\n"]
YAML_TRAPS += [f"trainer: {{callbacks: [{CANARY}], logger: {CANARY}}}", f"network: {CANARY}"]
YAML_TRAPS += ["!!python/object/apply:os.system ['true']"]
"""Deep nesting, aliases of themselves, tags of Python, classes to import."""


def yaml_trap(data: bytes, random: Random) -> bytes:
    trap = pick(YAML_TRAPS, random).encode()
    return trap if random.random() < 0.4 else data + b"\n" + trap + b"\n"


OF_KIND: dict[str, tuple[Mutation, ...]] = {
    "png": (png_header, png_body),
    "safetensors": (safetensors_header,),
    "json": (*[json_value] * 12, text_bytes),
    "jsonl": (*[json_value] * 8, text_bytes, lines_moved, lines_moved),
    "yaml": (*[cell] * 8, yaml_trap, yaml_trap, text_bytes, lines_moved, lines_moved),
    "csv": (*[cell] * 8, text_bytes, lines_moved, lines_moved),
}
NO_FORM = (ValueError, LookupError, OverflowError, RecursionError, zlib.error, struct.error)


def mutate(data: bytes, kind: str, random: Random) -> bytes:
    """Damaged bytes of a file whose ending is ``kind``: by one mutation, seldom by two or three."""
    own = OF_KIND.get(kind, ())
    for number in range(pick([1, 1, 1, 1, 1, 2, 3], random)):
        table = own if own and number == 0 and random.random() < 0.6 else ANY
        with contextlib.suppress(*NO_FORM):  # what has not the form of its kind stays
            data = pick(table, random)(data, random)
    return data
