"use strict";
/* The layers that can lie over an image: what they are called, which maps they need, how they are painted. */
(function (segunc) {
  const { table, colours, legend } = segunc;
  const { page } = segunc.data;
  const OTHER = "other/";

  const isOther = (layer) => layer.startsWith(OTHER);
  const plain = (layer) => (isOther(layer) ? layer.slice(OTHER.length) : layer);
  const modelOf = (layer) => (isOther(layer) ? OTHER : "");

  /* The maps that a layer is painted from. */
  function needs(layer) {
    const name = plain(layer);
    if (name === "image") return [];
    if (name === "error") return [`${modelOf(layer)}prediction`, "label/truth"];
    return [layer];
  }

  const available = (index, layer) => (layer === "image" ? table.has(index, "image") : needs(layer).every((content) => table.has(index, content)));

  /* All layers that a frame of this page has, in the order of the list. */
  const models = page.compared ? ["", OTHER] : [""];
  const every = ["image", ...models.map((m) => `${m}prediction`), ...models.flatMap((m) => table.scores.map((s) => `${m}${s}`)),
    ...models.map((m) => `${m}error`), "label/truth", "label/anomaly"]
    .filter((layer) => (layer === "image" ? table.everHas("image") : needs(layer).every(table.everHas)));

  const TITLES = { image: "image", prediction: "prediction", error: "error", "label/truth": "ground truth", "label/anomaly": "anomaly label" };
  function title(layer) {
    const words = TITLES[plain(layer)] ?? plain(layer);
    if (!page.compared || ["image", "label/truth", "label/anomaly"].includes(layer)) return words;
    return `${words} · model ${isOther(layer) ? 2 : 1}`;
  }

  /* One key for one layer, on every page; the same key again shows it of the other model. Layers without one are reached in turn. */
  const KEYS = { image: "0", prediction: "1", anomaly: "2", entropy: "3", epistemic: "4", aleatoric: "5", msp: "6", "label/truth": "7", "label/anomaly": "8", error: "9" };
  const keyOf = (layer) => KEYS[plain(layer)] ?? "";
  function atKey(key, now) {
    const found = every.filter((layer) => keyOf(layer) === key);
    return found[(found.indexOf(now) + 1) % found.length] ?? null;
  }

  const scoreOf = (layer) => (table.scores.includes(plain(layer)) ? plain(layer) : null);

  /* Paint a layer on a canvas from its maps; throws where they do not fit together. */
  function paint(canvas, layer, maps) {
    const name = plain(layer);
    if (scoreOf(layer)) colours.paintScore(canvas, maps[0], name);
    else if (name === "prediction") colours.paintClasses(canvas, maps[0]);
    else if (name === "label/truth") colours.paintTruth(canvas, maps[0]);
    else if (name === "label/anomaly") colours.paintAnomaly(canvas, maps[0]);
    else if (name === "error") {
      if (maps[0].width !== maps[1].width || maps[0].height !== maps[1].height) {
        throw new Error("prediction and label differ in size");
      }
      colours.paintError(canvas, maps[0], maps[1]);
    }
  }

  function legendOf(layer, maps) {
    const name = plain(layer);
    if (name === "image") return null;
    if (scoreOf(layer)) return legend.scoreLegend(name);
    if (colours.key[name]) return legend.swatches(title(layer), colours.key[name]);
    return legend.classLegend(title(layer), maps[0]);
  }

  segunc.layers = { every, available, needs, title, keyOf, atKey, scoreOf, modelOf, paint, legendOf };
})(segunc);
