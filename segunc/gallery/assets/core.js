"use strict";
/* The one global of the page. A page opened from disk can import no modules (its origin is opaque),
   so each file adds its part to this object, in the order of index.html. */
globalThis.segunc = (function () {
  const data = {};
  const arrived = new Map();

  /* Called by every script of data: a table under its name, or a map waiting to be unpacked. */
  function receive(key, head, text) {
    if (text === undefined) data[key] = head;
    else arrived.set(key, { head, text });
  }

  /* The content of a script of data that is loaded when it is needed; rejects where the file is not
     there, or is of a page that was written in the place of this one: its folder may be another
     frame's, and its regions those of another threshold. */
  function load(key) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = `${key.split("/").map(encodeURIComponent).join("/")}.js`;
      script.onload = () => {
        const content = arrived.get(key);
        arrived.delete(key);
        script.remove();
        if (!content) reject(new Error(`${key}.js is damaged`));
        else if (content.head.stamp === data.page.stamp) resolve(content);
        else {
          dispatchEvent(new Event("segunc-outdated"));
          reject(new Error("this page was written again: reload it"));
        }
      };
      script.onerror = () => {
        script.remove();
        reject(new Error(`${key}.js cannot be read`));
      };
      document.head.append(script);
    });
  }

  /* An element with attributes (on... are listeners, true is an empty attribute, null leaves it
     out) and children. */
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  function svg(tag, attributes = {}, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  /* Six significant digits. */
  function format(value) {
    if (value === null || value === undefined) return "–";
    return Number.isFinite(value) ? String(Number(value.toPrecision(6))) : String(value);
  }

  /* A threshold, so that the number that is shown flags the pixels that it flags: in six digits if
     they suffice. See threshold_text in encoding.py. */
  function thresholdText(threshold) {
    if (!Number.isFinite(threshold)) return format(threshold);
    const justBelow = threshold - Math.abs(threshold) * 2 ** -26;
    for (let digits = 6; digits < 17; digits++) {
      for (const near of [threshold, justBelow]) {
        const written = Number(near.toPrecision(digits));
        const readsBack = Math.fround(written) === threshold;
        if (written === threshold || (readsBack && written < threshold)) return String(written);
      }
    }
    return String(threshold);
  }

  /* So many significant digits. */
  const digits = (value, count) => format(Number(value.toPrecision(count)));

  /* A large number for a glance: 1.2M. */
  const compact = (value) =>
    new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(value);

  function seconds(time) {
    const minutes = Math.floor(time / 60);
    return `${minutes}:${(time - 60 * minutes).toFixed(2).padStart(5, "0")}`;
  }

  /* The intersection over union of two boxes: left, top, width, height. */
  function overlap([x, y, w, h], [x2, y2, w2, h2]) {
    const across = Math.min(x + w, x2 + w2) - Math.max(x, x2);
    const down = Math.min(y + h, y2 + h2) - Math.max(y, y2);
    const both = Math.max(0, across) * Math.max(0, down);
    return both / (w * h + w2 * h2 - both);
  }

  let fading = null;

  /* Say something to a screen reader, without moving the focus; where `seen`, to everybody, for
     some seconds. */
  function announce(text, seen = false) {
    const live = document.getElementById("live");
    live.textContent = text;
    live.classList.toggle("unseen", !seen);
    clearTimeout(fading);
    live.onclick = () => live.classList.add("unseen");
    if (seen) fading = setTimeout(live.onclick, 4000);
  }

  /* An address of a picture that is loaded as a script, so that it can be drawn into one that is
     saved. */
  async function pictureOf(key) {
    const { text } = await load(key);
    return URL.createObjectURL(
      new Blob([Uint8Array.from(atob(text), (character) => character.charCodeAt(0))], {
        type: "image/jpeg",
      }),
    );
  }

  return {
    data,
    receive,
    load,
    pictureOf,
    element,
    svg,
    format,
    thresholdText,
    digits,
    compact,
    seconds,
    overlap,
    announce,
  };
})();
