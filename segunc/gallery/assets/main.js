"use strict";
/* What made the maps: the line in the header, notices, and the view with all facts and legends.
   Then puts the page together and tells every part each change of state. */
(function (segunc) {
  const { element, state, table, verdicts, layers, format, thresholdText, announce } = segunc;
  const { page, frames } = segunc.data;
  const MAX_THRESHOLDS = 3; // that a notice names
  const views = ["gallery", "alarms", "frame", "run"];

  const heading = `Uncertainty review: ${page.title}`;

  /* The model and where the frames come from. */
  function modelWords() {
    const input = new Map(page.facts).get("run.input");
    const words = [page.line || "no model is recorded"];
    if (input) words.push(`frames of ${input.split(/[\\/]/).slice(-2).join("/")}`);
    return words;
  }

  function showHeader() {
    const title = document.getElementById("title");
    title.textContent = heading;
    title.title = heading; // which a narrow window cuts
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
    document.getElementById("model").replaceChildren(details, " ", modelWords().join(" · "));
  }

  /* A notice that can be closed. One of a kind takes the place of the last of it; "" takes that
     away. */
  const notices = new Map();
  function say(text, kind = null) {
    notices.get(kind)?.remove();
    if (!text) return;
    const close = { type: "button", "aria-label": "Close this notice" };
    const notice = element(
      "p",
      { class: "notice", role: "status" },
      element("span", {}, text),
      element("button", { ...close, onclick: () => notice.remove() }, "×"),
    );
    if (kind) notices.set(kind, notice);
    document.getElementById("notices").append(notice);
  }

  /* What the page knows from the start. */
  function standingNotices() {
    const lines = [...page.notices];
    if (page.failed.length) {
      lines.push(
        `${page.failed.length} frames failed when they were predicted; they are named under Run.`,
      );
    }
    const broken = frames.filter(({ problems }) => problems.length).length;
    if (broken) {
      lines.push(
        `${broken} frames could not be shown whole; each says why, ` +
          "and the gallery can show them alone.",
      );
    }
    const lost = verdicts.leftOut();
    if (lost) {
      lines.push(
        `${lost} entries that this browser kept for the run are no verdicts and were left out. ` +
          "Import your exported file if verdicts are missing.",
      );
    }
    const elsewhere = verdicts.elsewhere();
    if (elsewhere) {
      const entries = elsewhere === 1 ? "1 verdict or note" : `${elsewhere} verdicts or notes`;
      lines.push(
        `This browser keeps ${entries} of the run on frames that this page does not have. ` +
          "They are neither counted nor exported here.",
      );
    }
    lines.push(...imageLines());
    return lines;
  }

  /* That this browser keeps verdicts on other images than those of this page, or such that do not
     say on which they were given. */
  function imageLines() {
    const lines = [];
    const others = verdicts.onOtherImages();
    if (others) {
      const entries = others === 1 ? "1 verdict or note" : `${others} verdicts or notes`;
      lines.push(
        `This browser keeps ${entries} on frames that had another image when they were judged. ` +
          "They are neither counted nor exported here. Judge these frames again.",
      );
    }
    const unstated = verdicts.withoutImage();
    if (unstated) {
      const name = unstated === 1 ? "1 verdict names" : `${unstated} verdicts name`;
      lines.push(
        `${name} no image, as of an earlier version. They count as given on the images of this ` +
          "page.",
      );
    }
    return lines;
  }

  const sayThresholds = () => say(thresholdWords(), "thresholds");

  /* That verdicts were given at another threshold than that of this page; empty where none was. */
  function thresholdWords() {
    const others = verdicts.otherThresholds();
    const after = (preparation) => (preparation ? ` after ${preparation}` : "");
    const parts = others.slice(0, MAX_THRESHOLDS).map(([score, threshold, prepared, count]) => {
      const was = count === 1 ? "verdict was" : "verdicts were";
      const recorded = table.recordedThreshold(score);
      const here =
        recorded === null
          ? "which this page does not have"
          : `here ${thresholdText(recorded)}${after(table.preparationOf(score))}`;
      const from = `${thresholdText(threshold)}${after(prepared)}`;
      return `${count} ${was} given at ${layers.name(score)} ≥ ${from} (${here})`;
    });
    if (others.length > MAX_THRESHOLDS) {
      parts.push(`others at ${others.length - MAX_THRESHOLDS} other thresholds`);
    }
    const hint =
      "They count all the same. To judge a frame at the threshold that is set, judge it again.";
    return parts.length ? `${parts.join("; ")}. ${hint}` : "";
  }

  /* That this browser keeps verdicts which a page of another run does not show; empty where it
     keeps none. */
  function otherRunWords() {
    const runs = verdicts.otherRuns();
    const count = runs.reduce((sum, [, number]) => sum + number, 0);
    const names = runs.map(([run]) => run.slice(0, 6)).join(", ");
    return count
      ? `This browser holds ${count} ${count === 1 ? "verdict" : "verdicts"} on another run of ` +
          `a page of this name or place (${names}; this page: ${page.run.slice(0, 6)}). They ` +
          "judge other maps, so they do not count here. To export them, make the page of that " +
          "run again."
      : "";
  }

  /* What flags pixels now: the score and its threshold, with the recorded one where it is
     another. */
  function flaggingWords() {
    const now = state.get();
    if (!now.score) return "no score";
    const name = layers.name(now.score);
    const threshold = table.thresholdOf(now);
    if (threshold === null) return `score: ${name}, no threshold is set`;
    const recorded = table.recordedThreshold(now.score);
    const isOther = recorded !== null && recorded !== threshold;
    const other = isOther ? ` (recorded: ${thresholdText(recorded)})` : "";
    return `score: ${name}, flagged from ${thresholdText(threshold)} on${other}`;
  }

  /* What a printed page is of, in place of the header; with all notices that hold for the paper,
     also closed ones. */
  function fillPrintedHead() {
    const made = page.date ? `maps of ${page.date}, ` : "";
    const lines = [
      modelWords().join(" · "),
      flaggingWords(),
      `${made}run ${page.run}, page written by ${page.written}`,
    ];
    const notes = [...standingNotices(), thresholdWords(), otherRunWords()].filter(Boolean);
    document
      .getElementById("printed-head")
      .replaceChildren(
        element("h1", {}, heading),
        ...lines.map((line) => element("p", {}, line)),
        element("ul", { hidden: !notes.length }, ...notes.map((note) => element("li", {}, note))),
      );
  }

  /* What the address asks for and the page does not hold; gone with the next address. */
  function sayUnknown() {
    const unknown = state.unknown();
    const words = `The address asks for what this page does not hold: ${unknown.join(", ")}.`;
    say(unknown.length ? `${words} The rest of it is shown.` : "", "address");
  }

  /* Whoever judges after another should give a name first; gone once it is given. */
  function sayFollowing() {
    const words =
      "Another reviewer has judged this run. " +
      "To judge without seeing these verdicts and the labels, give your name first.";
    say(verdicts.followsAnother() ? words : "", "following");
  }

  /* What is open here is an earlier page than the one on the disk. */
  function sayOutdated() {
    const reload = verdicts.kept()
      ? "Reload it; this browser keeps your verdicts."
      : "Export your verdicts, which this browser does not keep, and reload it.";
    say(`This page was written again after you opened it. ${reload}`, "outdated");
  }

  const section = (title, ...children) =>
    element("section", {}, element("h2", {}, title), ...children);

  function factList(facts) {
    const items = facts.map(([term, text]) =>
      element("div", {}, element("dt", {}, term), element("dd", {}, text)),
    );
    return element("dl", {}, ...items);
  }

  function framesSection() {
    const labelled = frames.filter(({ objects }) => objects !== null).length;
    const facts = [["On this page", `${table.count} of ${page.total}`]];
    if (labelled) facts.push(["With an anomaly label", String(labelled)]);
    if (page.failed.length) facts.push(["Failed", String(page.failed.length)]);
    return section("Frames", factList(facts));
  }

  function scoresSection() {
    const facts = table.scores.map((score) => {
      const { unit } = page.scores[score];
      const from = table.recordedThreshold(score);
      const flagged =
        from === null ? "no recorded threshold" : `flagged from ${thresholdText(from)} on`;
      return [layers.name(score), unit ? `${unit}; ${flagged}` : flagged];
    });
    return section("Scores and their thresholds", factList(facts));
  }

  /* Where the upper half of a bar begins and ends, of a score that was measured up to a value. */
  function extrapolatedWords(score) {
    const { measured_to: measured, high, fixed_high: fixed } = page.scores[score];
    if (measured === null) return "";
    const words =
      ` The hatched half of the bar of ${layers.name(score)} holds values beyond ` +
      `${format(measured)}, up to which it was measured when it was fitted.`;
    if (fixed === null) return words;
    const end =
      `It ends at ${format(fixed)}, or later, at a whole number, where this run has larger ` +
      `values: here at ${format(high)}.`;
    return `${words} ${end}`;
  }

  function coloursSection() {
    const words =
      "One value has one colour in every frame. ≤ and ≥ mark ends whose colour stands for more. " +
      "Scores without a fixed range span the 1st to the 99th percentile of frames from the whole " +
      `set.${table.scores.map(extrapolatedWords).join("")}`;
    const legends = element(
      "div",
      { class: "legends" },
      ...table.scores.map((score) => layers.scoreLegend(score)),
    );
    return section("Colours", legends, element("p", { class: "small" }, words));
  }

  function objectsSection() {
    const percent = ({ found_share: share }) => `${+(100 * share).toFixed(1)} %`;
    const shares = [...new Set(Object.values(page.scores).map(percent))];
    const words =
      `An object is a connected region (8 neighbours) of the label of at least ` +
      `${page.objects.smallest} pixels, or any region where a frame has no larger one: its card ` +
      `calls them specks. It is flagged where at least ` +
      `${shares.join(" or, by another score, ")} of its pixels have a ` +
      "score at or above the threshold. A frame counts as flagged where all its objects are. " +
      "What a reviewer calls missed is a verdict of its own.";
    return section("Flagged and not flagged", element("p", {}, words));
  }

  function failedSection() {
    const item = ({ name, reason }) => element("li", {}, element("b", {}, name), ` ${reason}`);
    return section("Failed frames", element("ul", {}, ...page.failed.map(item)));
  }

  /* All that is recorded, for whoever must know. */
  function recordSection() {
    const facts = [...page.facts, ["Run id", page.run], ["Page written by", page.written]];
    const title = element("summary", {}, element("h2", {}, "Everything that is recorded"));
    return element("details", { id: "record" }, title, factList(facts));
  }

  function buildRun() {
    const sections = page.summary.map(([title, facts]) => section(title, factList(facts)));
    if (!page.summary.length) sections.push(section("Model", element("p", {}, page.line)));
    sections.push(framesSection());
    if (table.scores.length) sections.push(scoresSection(), coloursSection());
    if (frames.some(({ objects }) => objects !== null)) sections.push(objectsSection());
    if (page.failed.length) sections.push(failedSection());
    document.getElementById("run-view").append(...sections, recordSection());
  }

  /* What is not the picture folds away: by a key or a button, and by itself in a small window,
     until the reader says otherwise. */
  const SMALL = matchMedia("(max-height: 700px), (max-width: 600px)");
  let folded = null;
  function fold() {
    const isFolded = folded ?? SMALL.matches;
    document.documentElement.dataset.compact = isFolded ? "yes" : "no";
    document.getElementById("fold").setAttribute("aria-pressed", String(!isFolded));
  }
  segunc.toggleCompact = () => {
    folded = document.documentElement.dataset.compact !== "yes";
    fold();
    const words = "model line, values and timeline are folded away";
    announce(folded ? words : "everything is shown", true);
  };

  /** @type {NodeListOf<HTMLButtonElement>} */
  const viewButtons = document.querySelectorAll("nav button");
  const undo = /** @type {HTMLButtonElement} */ (document.getElementById("undo"));
  const redo = /** @type {HTMLButtonElement} */ (document.getElementById("redo"));

  function showView(current) {
    document.documentElement.dataset.view = current.view;
    for (const view of views) {
      document.getElementById(`${view}-view`).hidden = view !== current.view;
    }
    for (const button of viewButtons) {
      if (button.dataset.view === current.view) button.setAttribute("aria-current", "page");
      else button.removeAttribute("aria-current");
    }
    const frame = current.view === "frame" && current.frame ? `${current.frame} · ` : "";
    document.title = `${frame}${page.title}: uncertainty review`;
    openMenu(false);
  }

  function showProgress() {
    const judged = frames.map(({ name }) => verdicts.get(name)).filter((own) => own?.verdict);
    const byRegions = judged.filter(({ derived }) => derived).length;
    const how = byRegions ? `, ${byRegions} by regions alone` : "";
    const words = `${judged.length} of ${table.count} judged${how}`;
    const lost = ", not kept by this browser: export before you close";
    document.getElementById("progress").textContent = verdicts.kept() ? words : `${words}${lost}`;
    undo.disabled = !verdicts.canUndo();
    redo.disabled = !verdicts.canRedo();
  }

  /* In a narrow window the tools are a menu. */
  const header = document.querySelector("header");
  const menu = document.getElementById("menu");
  function openMenu(open) {
    header.classList.toggle("open", open);
    menu.setAttribute("aria-expanded", String(open));
  }

  /* What a first visit needs, in three lines; closed for good, and again under the key `?`. */
  const INTRO_KEY = "segunc-review-intro";
  const ranking = page.ranking ? layers.name(page.ranking) : "the maps";
  segunc.intro = [
    `Each card is a frame, the strongest ${ranking} first. Bright: do not trust the network there.`,
    "Alarms lists the strongest regions that are flagged. Open one, or a card, to see its frame.",
    "Judge frames, regions and alarms; then export your verdicts.",
  ];

  function closeIntro() {
    document.getElementById("intro").hidden = true;
    try {
      localStorage.setItem(INTRO_KEY, "closed");
    } catch {
      // shown again at the next visit
    }
  }

  function showIntro() {
    const box = document.getElementById("intro");
    let closed = false;
    try {
      closed = localStorage.getItem(INTRO_KEY) === "closed";
    } catch {
      // shown at every visit
    }
    box.hidden = closed;
    const lines = segunc.intro.map((line) => element("li", {}, line));
    const close = { type: "button", id: "intro-close", onclick: closeIntro };
    box.replaceChildren(element("ol", {}, ...lines), element("button", close, "Got it"));
  }

  function listen() {
    const onClick = (id, act) => document.getElementById(id).addEventListener("click", act);
    onClick("undo", () => segunc.frame.undo(false));
    onClick("redo", () => segunc.frame.undo(true));
    onClick("fold", () => segunc.toggleCompact());
    onClick("menu", () => openMenu(!header.classList.contains("open")));
    addEventListener("keydown", (event) => {
      if (event.key === "Escape") openMenu(false);
    });
    document.addEventListener("click", ({ target }) => {
      if (!menu.contains(/** @type {Node} */ (target))) openMenu(false);
    });
    for (const button of viewButtons) {
      button.addEventListener("click", () => state.set({ view: button.dataset.view }));
    }
    onClick("skip", () => {
      if (state.get().view === "gallery") segunc.gallery.focusFirst();
      else if (state.get().view === "alarms") segunc.alarms.focusOn();
      else document.getElementById("content").focus();
    });
    SMALL.addEventListener("change", fold);
    addEventListener("beforeprint", fillPrintedHead);
    verdicts.onChange(showProgress);
    verdicts.onChange(sayFollowing);
    addEventListener("popstate", sayUnknown);
    addEventListener("segunc-outdated", sayOutdated);
  }

  showHeader();
  showIntro();
  buildRun();
  for (const part of ["gallery", "frame", "timeline", "alarms", "notes", "keys"]) {
    segunc[part].start();
  }
  segunc.reviewing.start(say, sayThresholds);
  listen();
  fold();
  showProgress();
  state.onChange(showView);
  for (const part of ["gallery", "frame", "timeline", "alarms"]) {
    state.onChange(segunc[part].update);
  }
  state.start();
  for (const notice of standingNotices()) say(notice);
  sayThresholds();
  say(otherRunWords(), "runs");
  sayUnknown();
  sayFollowing();
  document.documentElement.dataset.ready = "yes";
})(segunc);
