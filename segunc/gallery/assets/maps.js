"use strict";
/* Maps and labels as they lie on disk: unpacked, kept while there is room, and read pixel by pixel. */
(function (segunc) {
  const BUDGET = 256 * 2 ** 20; // bytes of maps in memory
  const kept = new Map(); // key -> {promise, map, bytes}, least recently used first
  let used = 0;

  /* The values of every 16-bit float, by its bits. */
  function halfFloats() {
    const values = new Float32Array(65536);
    for (let bits = 0; bits < 65536; bits++) {
      const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
      if (exponent === 31) values[bits] = fraction ? NaN : sign * Infinity;
      else if (exponent === 0) values[bits] = sign * fraction * 2 ** -24;
      else values[bits] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
    }
    return values;
  }

  /* Whole numbers as float32 values, in the arithmetic of the tool: divide in float32, then square. */
  function wholeNumbers(count, squared) {
    const values = new Float32Array(count);
    for (let code = 0; code < count; code++) {
      const share = Math.fround(code / (count - 1));
      values[code] = squared ? share * share : share;
    }
    return values;
  }

  const tables = {};
  function valueTable(head) {
    const kind = `${head.dtype} ${head.form}`;
    if (head.dtype === "float32") return null;
    if (head.form === "range") return Float32Array.from({ length: 256 }, (_, code) => head.low + code / 255 * (head.high - head.low));
    tables[kind] ??= head.dtype === "float16" ? halfFloats()
      : wholeNumbers(head.dtype === "uint8" ? 256 : 65536, head.form === "unit-code");
    return tables[kind];
  }

  /* A map: `codes` as stored, and `table` from codes to values in real units (null where codes are values). */
  class StoredMap {
    constructor(head, codes) {
      this.width = head.width;
      this.height = head.height;
      this.codes = codes;
      this.table = valueTable(head);
      this.head = head;
    }

    /* Place of a pixel given as shares 0..1 of the frame's width and height; null outside. */
    place(across, down) {
      if (!(across >= 0 && across < 1 && down >= 0 && down < 1)) return null;
      return Math.floor(down * this.height) * this.width + Math.floor(across * this.width);
    }

    /* By how much neighbouring values differ where a map was condensed to 255 steps; null for a map as it is stored. */
    get step() {
      return this.head.form === "range" ? (this.head.high - this.head.low) / 255 : null;
    }

    value(place) {
      return this.table ? this.table[this.codes[place]] : this.codes[place];
    }
  }

  function fromBase64(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const binary = atob(text), bytes = new Uint8Array(binary.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
    return bytes;
  }

  async function inflate(bytes) {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  /* Undo frame_files.pack: planes of bytes, low byte first, of differences to the row above. */
  async function unpack({ head, text }) {
    const planes = await inflate(fromBase64(text));
    const { width, height } = head, count = width * height;
    const Kind = { uint8: Uint8Array, uint16: Uint16Array, float16: Uint16Array, float32: Uint32Array }[head.dtype];
    const codes = new Kind(count), size = Kind.BYTES_PER_ELEMENT;
    if (planes.length !== count * size) throw new Error("a map has another size than it says");
    for (let byte = 0; byte < size; byte++) {
      for (let i = 0, from = byte * count; i < count; i++) codes[i] |= planes[from + i] << (8 * byte);
    }
    for (let i = width; i < count; i++) codes[i] += codes[i - width]; // wraps at the end of its type
    return new StoredMap(head, head.dtype === "float32" ? new Float32Array(codes.buffer) : codes);
  }

  /* A map of the frame in folder `place`; rejects where it cannot be read. */
  function get(place, content) {
    const key = `frames/${String(place).padStart(6, "0")}/${content}`;
    let entry = kept.get(key);
    if (entry) kept.delete(key);
    else {
      entry = { bytes: 0, map: null };
      entry.promise = segunc.load(key).then(unpack).then((map) => {
        entry.map = map;
        entry.bytes = map.codes.byteLength;
        used += entry.bytes;
        for (const [other, old] of kept) {
          if (used <= BUDGET) break;
          if (old.map && old !== entry) {
            used -= old.bytes;
            kept.delete(other);
          }
        }
        return map;
      }, (error) => {
        kept.delete(key);
        throw error;
      });
    }
    kept.set(key, entry);
    return entry.promise;
  }

  /* The map where it is in memory, else null. */
  function peek(place, content) {
    return kept.get(`frames/${String(place).padStart(6, "0")}/${content}`)?.map ?? null;
  }

  segunc.maps = { get, peek };
})(segunc);
