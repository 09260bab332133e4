"use strict";
/* Maps and labels: unpacked, kept while there is room, and read pixel by pixel. */
(function (segunc) {
  const NO_NUMBER = 255; // code of a pixel of a score without a value, see condensed.py
  const KEPT = 400; // maps in memory, each of half a megabyte at most
  const kept = new Map(); // key -> {promise, map}, least recently used first

  /* A map: `codes` as stored, and `table` from codes to values in real units (null for a label,
     whose codes are ids). */
  class StoredMap {
    constructor({ width, height, low, high, shift }, codes, regions) {
      this.width = width;
      this.height = height;
      /* What the whole map has at or above the recorded threshold, of a map that is shrunk: {list,
         small, masks}, see gallery/frame_files.py, with the mask of each region of the list; null
         where the regions are those of these pixels. */
      this.regions = regions;
      this.codes = codes;
      this.high = high;
      this.step = (high - low) / 254; // by how much neighbouring values differ
      const value = (_, code) => {
        if (code === NO_NUMBER) return NaN;
        return Math.min(high, Math.max(low, low + (code + shift) * this.step));
      };
      // Float32 would round values that lie next to the recorded threshold onto it.
      this.table = low === undefined ? null : Float64Array.from({ length: 256 }, value);
      /* How many pixels have a value: a mask leaves others out, or they are no number. */
      const gaps = this.table ? codes.reduce((sum, code) => sum + (code === NO_NUMBER), 0) : 0;
      this.valued = codes.length - gaps;
    }

    get hasGaps() {
      return this.valued < this.codes.length;
    }

    /* Place of a pixel given as shares 0..1 of the frame's width and height; null outside. */
    place(across, down) {
      if (!(across >= 0 && across < 1 && down >= 0 && down < 1)) return null;
      return Math.floor(down * this.height) * this.width + Math.floor(across * this.width);
    }

    /* The largest value of pixels, whose largest value by their codes is given: that of the map is
       known exactly, and it has the last code. */
    highest(value) {
      return value === this.table[254] ? this.high : value;
    }

    value(place) {
      return this.table ? this.table[this.codes[place]] : this.codes[place];
    }
  }

  /* Undo what condensed.py does: differences to the row above, in a zlib stream, in base64. */
  async function codesOf(text, width) {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const codes = new Uint8Array(await new Response(stream).arrayBuffer());
    for (let i = width; i < codes.length; i++) codes[i] += codes[i - width]; // wraps at 256
    return codes;
  }

  /* The pixels of so many regions, as start and length of each run, row by row. `numbers` holds
     the number of the region of each pixel, from 1 on, and 0 for none. */
  function masksOf(numbers, width, count) {
    const masks = Array.from({ length: count }, () => []);
    for (let start = 0; start < numbers.length;) {
      const number = numbers[start];
      const rowEnd = start - (start % width) + width;
      let end = start + 1;
      while (end < rowEnd && numbers[end] === number) end++;
      if (number) masks[number - 1].push(start, end - start);
      start = end;
    }
    return masks;
  }

  /* The regions of a whole map as the head of its script describes them; null without. */
  async function regionsOf({ regions = null }) {
    if (!regions) return null;
    const { list, small, width, numbers } = regions;
    return { list, small, masks: masksOf(await codesOf(numbers, width), width, list.length) };
  }

  async function unpack({ head, text }) {
    const { width, height } = head;
    const codes = await codesOf(text, width);
    if (codes.length !== width * height) throw new Error("a map has another size than it says");
    return new StoredMap(head, codes, await regionsOf(head));
  }

  const keyOf = (place, content) => `frames/${String(place).padStart(6, "0")}/${content}`;

  /* A map of the frame in folder `place`; rejects where it cannot be read. */
  function get(place, content) {
    const key = keyOf(place, content);
    const entry = kept.get(key) ?? { map: null };
    entry.promise ??= segunc
      .load(key)
      .then(unpack)
      .then((map) => {
        entry.map = map;
        return map;
      })
      .catch((error) => {
        kept.delete(key);
        throw error;
      });
    kept.delete(key);
    kept.set(key, entry);
    if (kept.size > KEPT) kept.delete(kept.keys().next().value);
    return entry.promise;
  }

  /* The map where it is in memory, else null. */
  const peek = (place, content) => kept.get(keyOf(place, content))?.map ?? null;

  segunc.maps = { get, peek };
})(segunc);
