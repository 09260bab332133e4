"use strict";
/* The bar above the gallery: sort, search, filters, the threshold and the legend of the score. */
(function (segunc) {
  const { element, table, state, verdicts, format } = segunc;
  const { page } = segunc.data;
  const STATISTIC_WORDS = { p99: "99th percentile", max: "maximum", component: "largest region, pixels" };
  const MODEL_WORDS = { first: "model 1", second: "model 2", difference: "model 2 less model 1" };
  /* Of a score the words say from which value on a pixel belongs to a region. */
  function statisticWords(name, score = null) {
    const from = name === "component" && score ? page.scores[score].region_from : null;
    return from === null || from === undefined ? STATISTIC_WORDS[name] ?? name : `pixels of the largest region ≥ ${format(from)}:`;
  }
  const controls = {};

  function select(field, label, options) {
    const box = element("select", { id: `filter-${field}`, onchange: () => change(field, box.value) });
    fill(box, options);
    controls[field] = box;
    return element("label", {}, label, box);
  }

  function fill(box, options) {
    box.replaceChildren(...options.map(([value, words]) => element("option", { value }, words)));
  }

  function change(field, value) {
    // A threshold has the unit of its score.
    if (field === "score") state.set({ score: value, threshold: null, layer: value });
    else state.set({ [field]: value });
  }

  function build() {
    const form = document.getElementById("filters");
    form.addEventListener("submit", (event) => event.preventDefault());
    const search = element("input", { type: "search", id: "search", placeholder: "part of a name", oninput: () => state.set({ search: search.value }) });
    controls.search = search;
    const parts = [element("label", {}, "Search", search)];
    if (table.scores.length) {
      const all = [...new Set(table.scores.flatMap(table.statisticsOf))];
      parts.push(
        select("score", "Score", table.scores.map((name) => [name, name])),
        select("statistic", "Statistic", all.map((name) => [name, statisticWords(name)])));
      if (page.compared) parts.push(select("model", "Of", table.MODELS.map((name) => [name, MODEL_WORDS[name]])));
    }
    parts.push(select("order", "Order", Object.entries(table.ORDERS)));
    if (table.hasMoments) parts.push(select("moments", "Of each moment", [["one", "its first"], ["all", "all frames"]]));
    const known = Object.entries(table.SHOW).filter(([name]) => offered(name));
    parts.push(select("show", "Show", known.map(([name, [words]]) => [name, words])));
    controls.threshold = element("input", {
      type: "number", step: "any", id: "gallery-threshold", placeholder: "none",
      oninput: () => state.set({ threshold: controls.threshold.value === "" ? null : Number(controls.threshold.value) }),
    });
    if (table.scores.length) parts.push(element("label", {}, "Threshold", controls.threshold));
    parts.push(select("verdict", "Verdict", [["all", "any"], ["none", "not judged yet"], ...Object.entries(verdicts.WORDS), ["note", "with a note"], ["disagree", "reviewers disagree"]]));
    controls.legend = element("div", { id: "gallery-legend" });
    controls.count = element("p", { id: "count", role: "status" });
    form.replaceChildren(...parts, controls.legend, controls.count);
  }

  /* Filters that no frame of this page could pass are not offered. */
  function offered(name) {
    if (name === "flagged" || name === "below") return table.scores.length > 0;
    if (name === "found" || name === "missed") return Object.keys(segunc.data.frames.found).length > 0;
    if (name === "normal") return segunc.data.frames.objects.includes(0);
    if (name === "unlabelled") return table.everHas("label/anomaly") && segunc.data.frames.objects.includes(null);
    return name !== "problems" || Object.keys(segunc.data.frames.problems).length > 0;
  }

  function update(current, changed) {
    for (const field of ["score", "statistic", "model", "order", "moments", "show", "verdict", "search", "run"]) {
      if (controls[field] && controls[field].value !== (current[field] ?? "")) controls[field].value = current[field] ?? "";
    }
    if (controls.moments) controls.moments.disabled = current.order === "source";
    // The reader may be in the middle of typing "0.0".
    if (Number(controls.threshold.value || NaN) !== current.threshold && document.activeElement !== controls.threshold) {
      controls.threshold.value = current.threshold ?? "";
    }
    if (changed.has("score") && current.score) controls.legend.replaceChildren(segunc.legend.scoreLegend(current.score));
  }

  function showCount(shown, current, moments) {
    const needs = ["flagged", "below", "found", "missed"].includes(current.show) && current.threshold === null;
    const count = ["flagged", "below"].includes(current.show) && !table.inUnit(current.statistic);
    controls.count.textContent = needs ? "Give a threshold for this filter."
      : count ? "This statistic counts pixels; the filter needs one in the unit of the score."
      : `${moments < shown ? `${moments} moments, ` : ""}${shown} of ${table.count} frames${current.threshold === null ? "" : `, threshold ${format(current.threshold)}`}`;
  }

  segunc.filters = { build, update, showCount, statisticWords };
})(segunc);
