"use strict";
/* The layers that can lie over an image: what they are called, which maps they need, how they are
   painted on canvases that are never read back, and what their colours mean. */
(function (segunc) {
  const { element, table } = segunc;
  const { page } = segunc.data;

  /* The score whose colours a layer has: its own or, of the tint over the image, the chosen one. */
  function scoreOf(layer) {
    if (layer === "overlay") return segunc.state.get().score;
    return table.scores.includes(layer) ? layer : null;
  }

  /* The maps that a layer is painted from. */
  function needs(layer) {
    if (layer === "image") return [];
    if (layer === "overlay") return [segunc.state.get().score];
    if (layer === "error") return ["prediction", "label/truth"];
    return [layer];
  }

  const onImage = (layer) => layer === "image" || layer === "overlay";

  function available(index, layer) {
    if (onImage(layer) && !table.has(index, "image")) return false;
    return needs(layer).every((content) => table.has(index, content));
  }

  /* Whether a layer shows a label of a frame that is hidden until the reviewer judges the frame.
     Frames without a label are no exception, or this would say which they are. */
  const isHidden = (index, layer) =>
    !segunc.verdicts.revealed(table.name(index)) &&
    needs(layer).some((content) => content.startsWith("label/") && table.everHas(content));

  const HIDDEN = "hidden until you judge this frame";

  function everAvailable(layer) {
    if (onImage(layer) && !table.everHas("image")) return false;
    if (layer === "overlay") return page.ranking !== null;
    return needs(layer).every(table.everHas);
  }

  /* All layers that a frame of this page has, in the order of the list. */
  const every = [
    "image",
    "overlay",
    "prediction",
    ...table.scores,
    "error",
    "label/truth",
    "label/anomaly",
  ].filter(everAvailable);

  const TITLES = {
    image: "image",
    overlay: "image, tinted",
    prediction: "prediction",
    error: "error",
    "label/truth": "ground truth",
    "label/anomaly": "anomaly label",
  };
  const name = (score) => page.scores[score]?.title ?? score.replaceAll("-", " ");
  const title = (layer) => TITLES[layer] ?? name(layer);

  /* One key for one layer, on every page. Layers without one are reached in turn. */
  const KEYS = {
    image: "0",
    prediction: "1",
    anomaly: "2",
    entropy: "3",
    epistemic: "4",
    aleatoric: "5",
    msp: "6",
    "label/truth": "7",
    "label/anomaly": "8",
    error: "9",
  };
  const keyOf = (layer) => KEYS[layer] ?? "";
  const atKey = (key) => every.find((layer) => keyOf(layer) === key) ?? null;

  /* Pixels are 32-bit numbers in the byte order of every machine with a browser: red lowest. */
  const rgba = (red, green, blue, alpha = 255) =>
    ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  const ramp = Uint32Array.from(page.colours, (c) => rgba(c >> 16, (c >> 8) & 255, c & 255));
  /* Okabe and Ito's vermillion and sky blue, which colour-blind eyes tell apart. */
  const WRONG = rgba(213, 94, 0);
  const RIGHT = rgba(30, 34, 40, 150);
  const IGNORED = rgba(128, 128, 128, 190);
  const ANOMALY = rgba(86, 180, 233);
  const NOT_A_NUMBER = rgba(128, 128, 128);
  const classColours = new Uint32Array(256).fill(rgba(255, 255, 255));
  page.classes.forEach(({ colour }, id) => {
    classColours[id] = rgba(...colour);
  });

  /* Where a value lies on the bar of its score, 0 to 1 within its ends: what was measured takes the
     lower half where the rest is extrapolated. `top` is another upper end. And back. */
  function shareOf(score, value, top = page.scores[score].high) {
    const { low, measured_to: middle } = page.scores[score];
    if (middle === null) return (value - low) / (top - low);
    return value <= middle
      ? (value - low) / (middle - low) / 2
      : 0.5 + (value - middle) / (top - middle) / 2;
  }
  function valueAt(score, share, top = page.scores[score].high) {
    const { low, measured_to: middle } = page.scores[score];
    if (middle === null) return low + share * (top - low);
    return share <= 0.5
      ? low + 2 * share * (middle - low)
      : middle + (2 * share - 1) * (top - middle);
  }

  /* The row 0 to 255 of the colours for a value. */
  const levelOf = (score, value) =>
    Math.round(255 * Math.min(1, Math.max(0, shareOf(score, value))));

  function scoreColour(score, value) {
    return Number.isNaN(value) ? NOT_A_NUMBER : ramp[levelOf(score, value)];
  }

  /* The colour over an image, which is seen through the strongest, and alone under the lowest. */
  function tintColour(score, value) {
    if (Number.isNaN(value)) return IGNORED;
    const level = levelOf(score, value);
    return ((ramp[level] & 0xffffff) | (Math.round(level / 2) << 24)) >>> 0;
  }

  /* Classes of one colour to some eyes are told apart by the legend: of a class that is pressed
     there, its pixels alone have a colour. */
  const classColour = (code) =>
    [null, code].includes(segunc.state.get().only) ? classColours[code] : RIGHT;

  /* The colours of the 256 codes of a layer's map. */
  function coloursOf(layer, map) {
    const score = scoreOf(layer);
    const colourOf = (code) => {
      if (layer === "overlay") return tintColour(score, map.table[code]);
      if (score) return scoreColour(score, map.table[code]);
      if (layer === "label/anomaly") return [RIGHT, ANOMALY][code] ?? IGNORED;
      const isIgnored = code === 255 && (layer === "label/truth" || !page.classes[code]);
      if (isIgnored) return IGNORED;
      return classColour(code);
    };
    return Uint32Array.from({ length: 256 }, (_, code) => colourOf(code));
  }

  function errorColour(predicted, labelled) {
    if (labelled === 255) return IGNORED;
    return labelled === predicted ? RIGHT : WRONG;
  }

  /* Paint a layer on a canvas from its maps; throws where they do not fit together. What an anomaly
     `label` ignores is grey. */
  function paint(canvas, layer, [map, truth], label = null) {
    if (truth && (map.width !== truth.width || map.height !== truth.height)) {
      throw new Error("prediction and label differ in size");
    }
    const pixels = new Uint32Array(map.codes.length);
    const colours = coloursOf(layer, map);
    for (let i = 0; i < pixels.length; i++) {
      pixels[i] = truth ? errorColour(map.codes[i], truth.codes[i]) : colours[map.codes[i]];
      if (label && label.codes[i] > 1) pixels[i] = IGNORED;
    }
    Object.assign(canvas, { width: map.width, height: map.height });
    const image = new ImageData(new Uint8ClampedArray(pixels.buffer), map.width, map.height);
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  /* Whether an anomaly label ignores pixels. */
  const ignores = (label) => label.codes.some((code) => code > 1);

  const css = (c) => `rgb(${c & 255} ${(c >> 8) & 255} ${(c >> 16) & 255})`;

  /* The colours of a score; `hasGaps` says that the map beside it has pixels without a value. */
  function scoreLegend(score, hasGaps = false) {
    const { unit, ticks, measured_to: measured, words } = page.scores[score];
    const beyond = measured === null ? "" : `, measured up to ${measured}`;
    const hatched = measured === null ? "" : "; hatched: beyond what was measured";
    const about = (words || unit) + hatched + (hasGaps ? "; grey: no value" : "");
    const bar = element(
      "div",
      {
        class: "bar",
        role: "img",
        "aria-label": `colours from ${ticks[0]} to ${ticks[2]}${beyond}`,
      },
      measured === null ? null : element("i", { class: "extrapolated" }),
    );
    bar.style.background = `linear-gradient(90deg, ${[...ramp]
      .filter((_, i) => i % 15 === 0)
      .map(css)
      .join(", ")})`;
    return element(
      "figure",
      { class: "legend" },
      element(
        "figcaption",
        { title: `${score}: ${unit}` },
        element("b", {}, name(score)),
        about ? `: ${about}` : "",
      ),
      bar,
      element(
        "div",
        { class: "ticks", "aria-hidden": "true" },
        ...ticks.map((tick) => element("span", {}, tick)),
      ),
    );
  }

  /* Words and colours of a layer that is no score, with the class of each that has one: of classes
     those that the map holds, in the order of their ids. */
  function swatchesOf(layer, map) {
    if (layer === "error") {
      return [
        ["wrong class", WRONG],
        ["right class", RIGHT],
        ["ignored", IGNORED],
      ];
    }
    if (layer === "label/anomaly") {
      return [
        ["anomaly", ANOMALY],
        ["normal", RIGHT],
        ["ignored", IGNORED],
      ];
    }
    const ids = [...new Set(map.codes)].sort((a, b) => a - b);
    return ids.map((id) => {
      if (id === 255) return [className(id), page.classes[id] ? classColours[id] : IGNORED];
      return [className(id), classColours[id], id];
    });
  }

  function swatchItem([words, colour, id]) {
    const swatch = element("i", { "aria-hidden": "true" });
    swatch.style.background = css(colour);
    if (id === undefined) return element("li", {}, swatch, words);
    const pressed = segunc.state.get().only === id;
    const attributes = {
      type: "button",
      "aria-pressed": String(pressed),
      title: "show this class alone, or all again",
      onclick: () => segunc.state.set({ only: pressed ? null : id }),
    };
    return element("li", {}, element("button", attributes, swatch, words));
  }

  function legendOf(layer, [map]) {
    if (layer === "image") return null;
    const score = scoreOf(layer);
    if (score) return scoreLegend(score, map.hasGaps);
    const list = element("ul", { class: "swatches" }, ...swatchesOf(layer, map).map(swatchItem));
    return element(
      "figure",
      { class: "legend" },
      element("figcaption", {}, element("b", {}, title(layer))),
      list,
    );
  }

  const className = (id) => page.classes[id]?.name ?? (id === 255 ? "ignored" : `class ${id}`);

  segunc.layers = {
    every,
    available,
    isHidden,
    HIDDEN,
    needs,
    onImage,
    title,
    name,
    shareOf,
    valueAt,
    ramp,
    css,
    IGNORED,
    ignores,
    keyOf,
    atKey,
    scoreOf,
    paint,
    scoreLegend,
    legendOf,
    className,
  };
})(segunc);
