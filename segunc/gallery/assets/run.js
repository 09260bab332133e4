"use strict";
/* What made the maps: the line in the header, notices, and the view with all facts and legends. */
(function (segunc) {
  const { element, table, legend } = segunc;
  const { page } = segunc.data;

  function header() {
    document.getElementById("title").textContent = `Uncertainty review: ${page.compared ? `${page.title} and ${page.compared.title}` : page.title}`;
    const facts = new Map(page.facts);
    const words = [`${page.compared ? "model 1: " : ""}${page.line || "no model is recorded"}`];
    if (facts.has("run.input")) words.push(`data: ${facts.get("run.input").split(/[\\/]/).slice(-2).join("/")}`);
    words.push(page.written);
    const parts = [words.join(" · ")];
    if (page.compared) parts.push(element("br"), `model 2: ${page.compared.line || "not recorded"}`);
    document.getElementById("model").replaceChildren(...parts);
  }

  function notices() {
    const list = [...page.notices];
    if (page.failed.length) list.push(`${page.failed.length} frames failed when they were predicted; they are named under Run.`);
    const broken = Object.keys(segunc.data.frames.problems).length;
    if (broken) list.push(`${broken} frames could not be shown whole; each says why, and the gallery can show them alone.`);
    for (const text of list) say(text);
  }

  /* A notice that can be closed. */
  function say(text) {
    const notice = element("p", { class: "notice", role: "status" }, text,
      element("button", { type: "button", "aria-label": "Close this notice", onclick: () => notice.remove() }, "×"));
    document.getElementById("notices").append(notice);
  }

  function factList(title, facts) {
    return element("section", {}, element("h2", {}, title),
      element("dl", {}, ...facts.map(([term, text]) => element("div", {}, element("dt", {}, term), element("dd", {}, text)))));
  }

  function build() {
    const view = document.getElementById("run-view");
    view.append(factList(page.compared ? "Run, model 1" : "Run", [...page.facts, ["Frames", `${table.count} of ${page.total}`], ["Run id", page.run], ["Page written by", page.written]]));
    if (page.compared) view.append(factList("Model 2", page.compared.facts));
    const labelled = segunc.data.frames.objects.filter((n) => n !== null).length;
    view.append(element("section", {}, element("h2", {}, "Colours"),
      element("div", { class: "legends" }, ...table.scores.map(legend.scoreLegend)),
      element("p", { class: "small" }, "Ranges are fixed: one value has one colour in every frame. ≤ and ≥ mark ends whose colour stands for more. "
        + "Scores without bounds span the 1st to the 99th percentile of the whole set.")));
    if (labelled) {
      view.append(element("section", {}, element("h2", {}, "Found and missed"), element("p", {},
        `${labelled} of ${table.count} frames have an anomaly label. An object is a connected region (8 neighbours) of the label of at least `
        + `${page.objects.smallest} pixels, or any region where a frame has no larger one. It is found where at least ${100 * page.objects.share} % of its pixels have a score at `
        + "or above the threshold. A frame counts as found where all its objects are, and as missed where one is not.")));
    }
    if (page.failed.length) {
      view.append(element("section", {}, element("h2", {}, "Failed frames"),
        element("ul", {}, ...page.failed.map(({ name, reason }) => element("li", {}, element("b", {}, name), ` ${reason}`)))));
    }
  }

  segunc.run = { header, notices, build, say };
})(segunc);
