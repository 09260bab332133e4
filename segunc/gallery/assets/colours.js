"use strict";
/* Colours of scores, classes, errors and flagged pixels, painted on canvases that are never read back. */
(function (segunc) {
  const { page } = segunc.data;
  /* Pixels are 32-bit numbers in the byte order of every machine with a browser: red lowest. */
  const rgba = (red, green, blue, alpha = 255) => ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  const ramp = Uint32Array.from(page.colours, (c) => rgba(c >> 16, (c >> 8) & 255, c & 255));
  /* Okabe and Ito's vermillion and sky blue, which colour-blind eyes tell apart, and a cyan that no score map has. */
  const WRONG = rgba(213, 94, 0), RIGHT = rgba(30, 34, 40, 150), IGNORED = rgba(128, 128, 128, 190);
  const ANOMALY = rgba(86, 180, 233), NOT_A_NUMBER = rgba(128, 128, 128);

  function put(canvas, map, colourOf) {
    canvas.width = map.width;
    canvas.height = map.height;
    const pixels = new Uint32Array(map.codes.length);
    colourOf(pixels);
    const image = new ImageData(new Uint8ClampedArray(pixels.buffer), map.width, map.height);
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  function level(value, { low, high }) {
    return Math.round(255 * Math.min(1, Math.max(0, (value - low) / (high - low))));
  }

  /* Paint each pixel by a function of its value; one look-up a pixel where values follow from codes. */
  function paintByValue(canvas, map, colour) {
    put(canvas, map, (pixels) => {
      const { codes, table } = map;
      if (table) {
        const looked = Uint32Array.from(table, colour);
        for (let i = 0; i < pixels.length; i++) pixels[i] = looked[codes[i]];
      } else for (let i = 0; i < pixels.length; i++) pixels[i] = colour(codes[i]);
    });
  }

  function paintScore(canvas, map, score) {
    const range = page.scores[score];
    paintByValue(canvas, map, (value) => (Number.isNaN(value) ? NOT_A_NUMBER : ramp[level(value, range)]));
  }

  const classColours = new Uint32Array(256).fill(rgba(255, 255, 255));
  page.classes.forEach(({ colour }, id) => { classColours[id] = rgba(...colour); });

  function paintClasses(canvas, map) {
    put(canvas, map, (pixels) => {
      for (let i = 0; i < pixels.length; i++) pixels[i] = classColours[map.codes[i]];
    });
  }

  function paintTruth(canvas, map) {
    put(canvas, map, (pixels) => {
      for (let i = 0; i < pixels.length; i++) pixels[i] = map.codes[i] === 255 ? IGNORED : classColours[map.codes[i]];
    });
  }

  function paintError(canvas, prediction, truth) {
    put(canvas, prediction, (pixels) => {
      for (let i = 0; i < pixels.length; i++) {
        const label = truth.codes[i];
        pixels[i] = label === 255 ? IGNORED : label === prediction.codes[i] ? RIGHT : WRONG;
      }
    });
  }

  function paintAnomaly(canvas, map) {
    put(canvas, map, (pixels) => {
      for (let i = 0; i < pixels.length; i++) pixels[i] = [RIGHT, ANOMALY][map.codes[i]] ?? IGNORED;
    });
  }

  const css = (number) => `#${number.toString(16).padStart(6, "0")}`;
  const cssOfPixel = (c) => `rgb(${c & 255}, ${(c >> 8) & 255}, ${(c >> 16) & 255})`;
  const gradient = `linear-gradient(90deg, ${page.colours.filter((_, i) => i % 15 === 0).map(css).join(", ")})`;
  const key = {
    error: [["wrong class", cssOfPixel(WRONG)], ["right class", cssOfPixel(RIGHT)], ["ignored", cssOfPixel(IGNORED)]],
    "label/anomaly": [["anomaly", cssOfPixel(ANOMALY)], ["normal", cssOfPixel(RIGHT)], ["ignored", cssOfPixel(IGNORED)]],
  };

  segunc.colours = {
    paintScore, paintClasses, paintTruth, paintError, paintAnomaly, gradient, key,
  };
})(segunc);
