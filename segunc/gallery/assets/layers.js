"use strict";
/* The layers that can lie over an image: what they are called, which maps they need, how they are
   painted on canvases that are never read back, and what their colours mean. */
(function (segunc) {
  const { element, table } = segunc;
  const { page } = segunc.data;

  const scoreOf = (layer) => (table.scores.includes(layer) ? layer : null);

  /* The maps that a layer is painted from. */
  function needs(layer) {
    if (layer === "image") return [];
    if (layer === "error") return ["prediction", "label/truth"];
    return [layer];
  }

  const available = (index, layer) =>
    layer === "image"
      ? table.has(index, "image")
      : needs(layer).every((content) => table.has(index, content));

  /* All layers that a frame of this page has, in the order of the list. */
  const every = [
    "image",
    "prediction",
    ...table.scores,
    "error",
    "label/truth",
    "label/anomaly",
  ].filter((layer) =>
    layer === "image" ? table.everHas("image") : needs(layer).every(table.everHas),
  );

  const TITLES = {
    image: "image",
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
  const WRONG = rgba(213, 94, 0),
    RIGHT = rgba(30, 34, 40, 150),
    IGNORED = rgba(128, 128, 128, 190);
  const ANOMALY = rgba(86, 180, 233),
    NOT_A_NUMBER = rgba(128, 128, 128);
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

  function scoreColour(score, value) {
    return Number.isNaN(value)
      ? NOT_A_NUMBER
      : ramp[Math.round(255 * Math.min(1, Math.max(0, shareOf(score, value))))];
  }

  /* Classes of one colour to some eyes are told apart by the legend: of a class that is pressed
     there, its pixels alone have a colour. */
  const classColour = (code) =>
    [null, code].includes(segunc.state.get().only) ? classColours[code] : RIGHT;

  /* Paint a layer on a canvas from its maps; throws where they do not fit together. */
  function paint(canvas, layer, [map, truth]) {
    const score = scoreOf(layer),
      pixels = new Uint32Array(map.codes.length);
    if (truth && (map.width !== truth.width || map.height !== truth.height))
      throw new Error("prediction and label differ in size");
    const colourOf = score
      ? (code) => scoreColour(score, map.table[code])
      : layer === "label/anomaly"
        ? (code) => [RIGHT, ANOMALY][code] ?? IGNORED
        : layer === "label/truth"
          ? (code) => (code === 255 ? IGNORED : classColour(code))
          : classColour;
    const colours = Uint32Array.from({ length: 256 }, (_, code) => colourOf(code));
    for (let i = 0; i < pixels.length; i++) {
      if (!truth) pixels[i] = colours[map.codes[i]];
      else
        pixels[i] =
          truth.codes[i] === 255 ? IGNORED : truth.codes[i] === map.codes[i] ? RIGHT : WRONG;
    }
    Object.assign(canvas, { width: map.width, height: map.height });
    const image = new ImageData(new Uint8ClampedArray(pixels.buffer), map.width, map.height);
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  const css = (c) => `rgb(${c & 255} ${(c >> 8) & 255} ${(c >> 16) & 255})`;

  function scoreLegend(score) {
    const { unit, ticks, measured_to: measured, words } = page.scores[score];
    const beyond = measured === null ? "" : `, measured up to ${measured}`,
      about = (words || unit) + (measured === null ? "" : "; hatched: beyond what was measured");
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

  /* Of classes those that the map holds, in the order of their ids. */
  function legendOf(layer, [map]) {
    if (layer === "image") return null;
    if (scoreOf(layer)) return scoreLegend(layer);
    const entries =
      layer === "error"
        ? [
            ["wrong class", WRONG],
            ["right class", RIGHT],
            ["ignored", IGNORED],
          ]
        : layer === "label/anomaly"
          ? [
              ["anomaly", ANOMALY],
              ["normal", RIGHT],
              ["ignored", IGNORED],
            ]
          : [...new Set(map.codes)]
              .sort((a, b) => a - b)
              .map((id) => [
                className(id),
                id === 255 && !page.classes[id] ? IGNORED : classColours[id],
                id,
              ]);
    const list = element(
      "ul",
      { class: "swatches" },
      ...entries.map(([words, colour, id]) => {
        const swatch = element("i", { "aria-hidden": "true" });
        swatch.style.background = css(colour);
        if (id === undefined || id === 255) return element("li", {}, swatch, words);
        const pressed = segunc.state.get().only === id;
        return element(
          "li",
          {},
          element(
            "button",
            {
              type: "button",
              "aria-pressed": String(pressed),
              title: "show this class alone, or all again",
              onclick: () => segunc.state.set({ only: pressed ? null : id }),
            },
            swatch,
            words,
          ),
        );
      }),
    );
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
    needs,
    title,
    name,
    shareOf,
    valueAt,
    ramp,
    css,
    keyOf,
    atKey,
    scoreOf,
    paint,
    scoreLegend,
    legendOf,
    className,
  };
})(segunc);
