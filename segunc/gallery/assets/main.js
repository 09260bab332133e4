"use strict";
/* What made the maps: the line in the header, notices, and the view with all facts and legends.
   Then puts the page together and tells every part each change of state. */
(function (segunc) {
  const { element, state, table, verdicts, layers } = segunc;
  const { page, frames } = segunc.data;
  const views = ["gallery", "alarms", "frame", "run"];

  function showHeader() {
    document.getElementById("title").textContent = `Uncertainty review: ${page.title}`;
    const input = new Map(page.facts).get("run.input"),
      words = [page.line || "no model is recorded"];
    if (input) words.push(`frames of ${input.split(/[\\/]/).slice(-2).join("/")}`);
    const details = element(
      "button",
      {
        type: "button",
        id: "details",
        title: "All settings of the run (i)",
        onclick: () => state.set({ view: "run" }),
      },
      "Details",
    );
    document.getElementById("model").replaceChildren(details, " ", words.join(" · "));
    for (const text of page.notices) say(text);
    if (page.failed.length)
      say(
        `${page.failed.length} frames failed when they were predicted; they are named under Run.`,
      );
    const broken = frames.filter(({ problems }) => problems.length).length;
    if (broken)
      say(
        `${broken} frames could not be shown whole; each says why, and the gallery can show them alone.`,
      );
  }

  /* A notice that can be closed. */
  function say(text) {
    const notice = element(
      "p",
      { class: "notice", role: "status" },
      text,
      element(
        "button",
        { type: "button", "aria-label": "Close this notice", onclick: () => notice.remove() },
        "×",
      ),
    );
    document.getElementById("notices").append(notice);
  }

  const section = (title, ...children) =>
    element("section", {}, element("h2", {}, title), ...children);
  const factList = (title, facts) =>
    section(
      title,
      element(
        "dl",
        {},
        ...facts.map(([term, text]) =>
          element("div", {}, element("dt", {}, term), element("dd", {}, text)),
        ),
      ),
    );

  function buildRun() {
    const view = document.getElementById("run-view"),
      labelled = frames.filter(({ objects }) => objects !== null).length;
    view.append(
      factList("Run", [
        ...page.facts,
        ["Frames", `${table.count} of ${page.total}`],
        ["Run id", page.run],
        ["Page written by", page.written],
      ]),
    );
    view.append(
      section(
        "Colours",
        element("div", { class: "legends" }, ...table.scores.map(layers.scoreLegend)),
        element(
          "p",
          { class: "small" },
          "One value has one colour in every frame. ≤ and ≥ mark ends whose colour stands for more. " +
            "Scores without bounds span the 1st to the 99th percentile of the whole set. The hatched half of a bar holds values beyond those that were measured when the score was fitted, up to the largest of this run.",
        ),
      ),
    );
    if (labelled) {
      const shares = [
        ...new Set(
          Object.values(page.scores).map((of) => `${+(100 * of.found_share).toFixed(1)} %`),
        ),
      ];
      view.append(
        section(
          "Flagged and not flagged",
          element(
            "p",
            {},
            `${labelled} of ${table.count} frames have an anomaly label. An object is a connected region (8 neighbours) of the label of at least ` +
              `${page.objects.smallest} pixels, or any region where a frame has no larger one. It is flagged where at least ${shares.join(" or, by another score, ")} of its pixels have a score at ` +
              "or above the threshold. A frame counts as flagged where all its objects are. What a reviewer calls missed is a verdict of its own.",
          ),
        ),
      );
    }
    if (page.failed.length) {
      view.append(
        section(
          "Failed frames",
          element(
            "ul",
            {},
            ...page.failed.map(({ name, reason }) =>
              element("li", {}, element("b", {}, name), ` ${reason}`),
            ),
          ),
        ),
      );
    }
  }

  /* What is not the picture folds away: by a key, and by itself where the window is low, until the
     reader says otherwise. */
  const LOW = matchMedia("(max-height: 700px)");
  let folded = null;
  const fold = () => {
    document.documentElement.dataset.compact = (folded ?? LOW.matches) ? "yes" : "no";
  };
  segunc.toggleCompact = () => {
    folded = document.documentElement.dataset.compact !== "yes";
    fold();
    segunc.announce(
      folded ? "model line, values and timeline are folded away" : "everything is shown",
      true,
    );
  };

  function showView(current) {
    document.documentElement.dataset.view = current.view;
    for (const view of views)
      document.getElementById(`${view}-view`).hidden = view !== current.view;
    for (const button of document.querySelectorAll("nav button")) {
      if (button.dataset.view === current.view) button.setAttribute("aria-current", "page");
      else button.removeAttribute("aria-current");
    }
    document.title = `${current.view === "frame" && current.frame ? `${current.frame} · ` : ""}${page.title}: uncertainty review`;
  }

  function showProgress() {
    const judged = frames.filter(({ name }) => verdicts.get(name)?.verdict).length;
    document.getElementById("progress").textContent =
      `${judged} of ${table.count} judged${verdicts.kept() ? "" : ", not kept by this browser: export before you close"}`;
  }

  /* What a first visit needs, in three lines; closed for good, and again under the key `?`. */
  const INTRO_KEY = "segunc-review-intro";
  const ranking = page.ranking ? layers.name(page.ranking) : "the maps";
  segunc.intro = [
    `Each card is a frame, the strongest ${ranking} first: bright means that the network should not be trusted there.`,
    `Alarms lists all that is flagged, the strongest first. In a frame, t outlines it, r steps through its regions, 0 to 9 change the layer.`,
    `Judge a frame or a region with one key: a true alarm, s false alarm, m missed, h nothing wrong, u unsure. Then export.`,
  ];
  function showIntro() {
    const box = document.getElementById("intro");
    let closed = false;
    try {
      closed = localStorage.getItem(INTRO_KEY) === "closed";
    } catch {
      /* shown at every visit */
    }
    box.hidden = closed;
    box.replaceChildren(
      element("ol", {}, ...segunc.intro.map((line) => element("li", {}, line))),
      element(
        "button",
        {
          type: "button",
          id: "intro-close",
          onclick: () => {
            box.hidden = true;
            try {
              localStorage.setItem(INTRO_KEY, "closed");
            } catch {
              /* shown again at the next visit */
            }
          },
        },
        "Got it",
      ),
    );
  }

  showHeader();
  showIntro();
  buildRun();
  for (const part of ["gallery", "frame", "timeline", "alarms", "keys"]) segunc[part].start();
  segunc.reviewing.start(say);
  LOW.addEventListener("change", fold);
  fold();
  verdicts.onChange(showProgress);
  showProgress();
  for (const button of document.querySelectorAll("nav button")) {
    button.addEventListener("click", () => state.set({ view: button.dataset.view }));
  }
  document.getElementById("skip").addEventListener("click", () => {
    if (state.get().view === "gallery") segunc.gallery.focusFirst();
    else if (state.get().view === "alarms") segunc.alarms.focusOn();
    else document.getElementById("content").focus();
  });
  state.onChange(showView);
  for (const part of ["gallery", "frame", "timeline"]) state.onChange(segunc[part].update);
  state.start();
  const sayUnknown = () => {
    if (state.unknown().length)
      say(
        `The address asks for what this page does not hold: ${state.unknown().join(", ")}. The rest of it is shown.`,
      );
  };
  sayUnknown();
  if (verdicts.blindOnceNamed())
    say(
      "Another reviewer has judged this run. To judge without seeing these verdicts and the labels, give your name first.",
    );
  addEventListener("popstate", sayUnknown);
  document.documentElement.dataset.ready = "yes";
})(segunc);
