"use strict";
/* What colours mean: bars of scores in their fixed range, swatches of classes. */
(function (segunc) {
  const { element, colours } = segunc;
  const { page } = segunc.data;

  /* What the ends of a scale mean, for those who do not think in shares of ln C (the unit, which the tooltip says). */
  const WORDS = {
    entropy: "0 = certain, 1 = all classes equally likely", "deterministic-entropy": "0 = certain, 1 = all classes equally likely",
    aleatoric: "0 = every draw is certain, 1 = every draw is torn", epistemic: "0 = all draws agree; more: they contradict each other",
    msp: "0 = certain; 1 less the highest probability", "deterministic-msp": "0 = certain; 1 less the highest probability",
    anomaly: "3 = one in a thousand pixels of known scenes is as strange, 6 = one in a million",
  };

  function scoreLegend(score) {
    const { unit, ticks } = page.scores[score];
    const bar = element("div", { class: "bar", role: "img", "aria-label": `colours from ${ticks[0]} to ${ticks[2]}` });
    bar.style.background = colours.gradient;
    return element("figure", { class: "legend" },
      element("figcaption", { title: unit }, element("b", {}, score), WORDS[score] ? `: ${WORDS[score]}` : unit ? ` ${unit}` : ""),
      bar,
      element("div", { class: "ticks", "aria-hidden": "true" }, ...ticks.map((tick) => element("span", {}, tick))));
  }

  function swatches(title, entries) {
    const list = element("ul", { class: "swatches" });
    for (const [name, colour] of entries) {
      const swatch = element("i", { "aria-hidden": "true" });
      swatch.style.background = colour;
      list.append(element("li", {}, swatch, name));
    }
    return element("figure", { class: "legend" }, element("figcaption", {}, element("b", {}, title)), list);
  }

  /* Swatches of the classes that a map of ids holds, in the order of their ids. */
  function classLegend(title, map) {
    const present = [...new Set(map.codes)].sort((a, b) => a - b);
    return swatches(title, present.map((id) => [className(id), id === 255 ? "rgb(128 128 128)" : `rgb(${page.classes[id]?.colour ?? [255, 255, 255]})`]));
  }

  function className(id) {
    return page.classes[id]?.name ?? (id === 255 ? "ignored" : `class ${id}`);
  }

  segunc.legend = { scoreLegend, swatches, classLegend, className };
})(segunc);
