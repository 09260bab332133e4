"use strict";
/* The view of one frame: its panel of layers, threshold, values and verdict, and the way to its
   neighbours. */
(function (segunc) {
  const {
    element,
    table,
    state,
    layers,
    maps,
    stage,
    probe,
    gallery,
    verdicts,
    regions,
    reviewing,
    thresholdText,
    announce,
  } = segunc;
  const { page } = segunc.data;
  const FINGER = matchMedia("(pointer: coarse)");
  const panel = document.getElementById("panel");
  const parts = {}; // the elements that change, by their id
  let showing = null; // resolves when the frame asked for last is on the stage
  let later = null;

  const current = () => table.index(state.get().frame);

  /* A control of a panel with its label and key. */
  function row(label, input, key = null) {
    const kbd = key && element("kbd", {}, key);
    return element("label", { class: "row" }, element("span", {}, label), input, kbd);
  }

  function check(id, label, onchange, key) {
    parts[id] = element("input", { type: "checkbox", id, onchange });
    const words = element("span", {}, label, " ", element("kbd", {}, key));
    return element("label", { class: "check" }, parts[id], words);
  }

  function button(id, words, key, onclick) {
    parts[id] = element("button", { type: "button", id, onclick }, words, " ");
    if (key) parts[id].append(element("kbd", {}, key));
    return parts[id];
  }

  function group(id, title, ...children) {
    return element("fieldset", { id }, element("legend", {}, title), ...children);
  }

  /* The layers, as one line above the picture. */
  function buildLayers() {
    parts.layers = [];
    for (const layer of layers.every) {
      const onchange = () => chooseLayer(layer);
      const input = element("input", { type: "radio", name: "layer", value: layer, onchange });
      const key = layers.keyOf(layer);
      const kbd = key && element("kbd", {}, key);
      const choice = element("label", {}, input, layers.title(layer), kbd);
      document.getElementById("layers").append(choice);
      parts.layers.push(input);
    }
  }

  const VERDICT_KEYS = {
    "nothing-wrong": "h",
    "true-alarm": "a",
    "false-alarm": "s",
    missed: "m",
    unsure: "u",
    "": "⌫",
  };

  function verdictButton(verdict, words) {
    const attributes = { type: "button", "data-verdict": verdict, onclick: () => judge(verdict) };
    const kbd = element("kbd", {}, VERDICT_KEYS[verdict]);
    return element("button", attributes, element("span", {}, words), kbd);
  }

  /* What is judged, the verdicts, the note, and the way on. */
  function verdictPanel() {
    const kinds = Object.entries(verdicts.WORDS);
    parts.verdicts = kinds.map(([verdict, words]) => verdictButton(verdict, words));
    parts.takeBack = verdictButton("", "take back");
    parts.subject = element("span", { id: "subject", role: "status" });
    parts.whole = element(
      "button",
      { type: "button", id: "whole", onclick: () => state.set({ region: null }) },
      "the whole frame",
    );
    parts.note = element("textarea", {
      id: "note",
      rows: 1,
      placeholder: "Note",
      "aria-label": "Note on this frame",
      oninput: () => verdicts.set(state.get().frame, { note: parts.note.value }),
      onfocus: nameFirst,
    });
    parts.remark = element("p", { id: "remark", class: "small", role: "status", hidden: true });
    parts.others = element("ul", { id: "others", class: "small" });
    const onwards = check("onward", "then to the next unjudged", onwardChanged, "q");
    parts.onward.checked = onward;
    return group(
      "verdict-panel",
      "Verdict",
      element(
        "div",
        { id: "verdict-bar" },
        element("p", { class: "row small" }, parts.subject, parts.whole),
        element("div", { class: "buttons" }, ...parts.verdicts, parts.takeBack),
      ),
      parts.remark,
      parts.note,
      parts.others,
      onwards,
      button("next-open", "Next unjudged", "y", nextOpen),
    );
  }

  function regionsPanel() {
    return group(
      "regions-panel",
      "Regions",
      regions.list,
      regions.note,
      element(
        "div",
        { class: "row wrap" },
        button("region-before", "◀ Region", "R", () => regions.step(-1)),
        button("region-after", "Region ▶", "r", () => regions.step(1)),
        button("mark", "Box a missed object", "d", ({ detail }) =>
          detail ? toggle("marking") : boxByKeys(),
        ),
      ),
    );
  }

  function layerPanel() {
    const option = ([value, words]) => element("option", { value }, words);
    const counts = [
      ["1", "one"],
      ["2", "two"],
      ["4", "four"],
    ].map(option);
    const onchange = () => state.set({ panes: parts.panes.value });
    parts.panes = element("select", { id: "panes-count", onchange }, ...counts);
    const oninput = () => state.set({ opacity: Number(parts.opacity.value) });
    const range = { type: "range", id: "opacity", min: 0, max: 1, step: 0.05, oninput };
    parts.opacity = element("input", range);
    parts.legends = element("div", { id: "legends" });
    const children = [row("opacity", parts.opacity), row("panes", parts.panes, "P")];
    if (layers.every.includes("label/anomaly")) {
      const label = "outline the labelled anomaly; in the tinted image, ignored areas are grey";
      children.push(check("show-outline", label, () => toggle("outline"), "o"));
      parts["show-outline"].after(element("i", { class: "line labelled", "aria-hidden": "true" }));
    }
    children.push(
      parts.legends,
      button("save", "Save as a picture", "S", () => segunc.save()),
    );
    return group("layer-panel", "Layer", ...children);
  }

  function thresholdPanel() {
    if (!table.scores.length) return null;
    parts.number = element("input", {
      type: "number",
      step: "any",
      id: "threshold-number",
      "aria-label": "Threshold",
      oninput: () => {
        if (parts.number.value !== "") setThreshold(Number(parts.number.value));
      },
    });
    parts.threshold = element("input", {
      type: "range",
      id: "threshold",
      min: 0,
      max: 1000,
      step: 1,
      "aria-label": "Threshold",
      oninput: () => setThreshold(fromSlider(Number(parts.threshold.value))),
    });
    parts.flagged = element("p", { id: "flagged", class: "small", role: "status" });
    const flags = check("flags", "outline what is flagged", () => toggle("flags"), "t");
    parts.flags.after(element("i", { class: "line flagged", "aria-hidden": "true" }));
    const hole = element(
      "p",
      { id: "hole-line", class: "small" },
      element("i", { class: "line flagged hole", "aria-hidden": "true" }),
      "dashed: a hole, not flagged",
    );
    const recorded = button("recorded", "", null, () => state.set({ threshold: null }));
    return group(
      "threshold-panel",
      "Threshold",
      flags,
      hole,
      element("div", { class: "row" }, parts.threshold, parts.number),
      recorded,
      parts.flagged,
    );
  }

  function build() {
    buildLayers();
    parts.problems = element("ul", { id: "problems" });
    const panels = [verdictPanel(), regionsPanel(), thresholdPanel(), layerPanel()];
    panel.replaceChildren(...panels.filter(Boolean), parts.problems);
  }

  const ONWARD_KEY = "segunc-review-onward";
  let onward = false;
  try {
    onward = localStorage.getItem(ONWARD_KEY) === "yes";
  } catch {
    // as long as the page
  }

  const onwardChanged = () => keepOnward(parts.onward.checked);

  function keepOnward(now) {
    onward = now;
    parts.onward.checked = now;
    const leads = "each verdict on a frame leads to the next unjudged one";
    announce(onward ? leads : "a verdict stays at its frame", true);
    try {
      localStorage.setItem(ONWARD_KEY, onward ? "yes" : "no");
    } catch {
      // as long as the page
    }
  }

  /* The slider covers the score's range and what its maxima reach beyond it. */
  function sliderRange() {
    const { score } = state.get();
    const { low, high } = page.scores[score];
    let top = high;
    for (const { statistics } of segunc.data.frames) {
      top = Math.max(top, statistics[score]?.max ?? low);
    }
    return [low, top];
  }

  function fromSlider(position) {
    const [low, high] = sliderRange();
    const value = layers.valueAt(state.get().score, position / 1000, high);
    return Number(Math.min(high, Math.max(low, value)).toPrecision(4));
  }

  function setThreshold(threshold) {
    state.set({ threshold, flags: true });
  }

  const shownThreshold = (now) => table.thresholdOf(now) ?? table.usualThreshold(now.score);

  function toggle(field) {
    const now = state.get();
    if (field === "outline" && layers.isHidden(current(), "label/anomaly")) {
      sayHidden("label/anomaly");
      return;
    }
    const on = field === "outline" ? stage.outlined(current()) : now[field];
    const changes = { [field]: !on };
    if (field === "flags" && changes.flags && now.score && table.thresholdOf(now) === null) {
      changes.threshold = table.usualThreshold(now.score);
    }
    state.set(changes);
  }

  /* Begin a box around what was missed with a cross to move by keys, or end it. */
  function boxByKeys() {
    toggle("marking");
    if (state.get().marking) probe.showCross();
  }

  function dropBox() {
    state.set({ marking: false });
    announce("no box was drawn", true);
  }

  const sayHidden = (layer) => announce(`${layers.title(layer)}: ${layers.HIDDEN}`, true);

  function chooseLayer(layer) {
    if (!layers.every.includes(layer)) return;
    if (layers.isHidden(current(), layer)) {
      sayHidden(layer);
      return;
    }
    const score = layers.scoreOf(layer);
    const now = state.get();
    const changes = { layer };
    // The threshold belongs to a score: it follows the layer, and starts anew.
    if (score && score !== now.score) {
      const recorded = table.recordedThreshold(score);
      const threshold = recorded === null && now.flags ? table.usualThreshold(score) : null;
      const statistic = table.usual(score, now.statistic);
      Object.assign(changes, { score, statistic, threshold });
    }
    state.set(changes);
    announce(layers.title(layer));
  }

  /* Judge the region that is chosen, else the frame; "" takes a verdict back, and a verdict given
     twice stays. */
  function judge(verdict, frame = state.get().frame) {
    reviewing.named(() => {
      const here = state.get().view === "frame";
      if (here && regions.judge(verdict)) return;
      const had = verdicts.get(frame);
      verdicts.set(frame, { verdict });
      const again = verdict && had?.verdict === verdict && !had.derived ? "already " : "";
      const words = verdict ? verdicts.WORDS[verdict] : "verdict taken back";
      announce(`${again}${words} · ${frame}`, true);
      if (here && verdict && onward) nextOpen();
    });
  }

  /* Take the last change back (or `again`) and go to what it was on. */
  function undo(again) {
    const change = verdicts.undo(again);
    if (!change) {
      announce(again ? "nothing to do again" : "nothing to undo", true);
      return;
    }
    announce(`${change.words} on ${subjectWords(change)}`, true);
    const index = table.index(change.frame);
    if (state.get().view === "frame" && index !== null) goToRegion(index, change.region);
  }

  /* What a change was on, by the number that the view gives to it. */
  function subjectWords({ frame, region }) {
    if (!region) return `frame ${frame}`;
    // A drawn box is in the list only while it has a verdict, so its number comes and goes.
    if (region.score === null) return `a drawn box of frame ${frame}`;
    const { view } = state.get();
    const alarm = view === "alarms" ? segunc.alarms.numberOf(frame, region) : null;
    if (alarm !== null) return `alarm ${alarm}, in frame ${frame}`;
    const index = table.index(frame);
    const isSeen = view === "frame" && index === stage.shown() && index === current();
    const position = isSeen ? regions.placeOf(region) : null;
    if (position !== null) return `region ${position + 1} of frame ${frame}`;
    return `a region of frame ${frame}`;
  }

  /* Go to a frame and choose a region of it (null for none): without it, the next key would judge
     the whole frame. */
  async function goToRegion(index, region) {
    const isSeen = () => index === stage.shown() && index === current();
    if (!isSeen()) {
      go(index);
      await showing;
    }
    if (isSeen()) state.set({ region: region && regions.placeOf(region) });
  }

  function nextLayer(by) {
    const there = layers.every.filter((layer) => layers.available(current(), layer));
    const at = there.indexOf(state.get().layer);
    chooseLayer(there[(at + by + there.length) % there.length]);
  }

  /* A note needs a name, too; it is asked for before the first letter. */
  function nameFirst() {
    if (verdicts.reviewer() !== null) return;
    parts.note.blur();
    reviewing.named(focusNote);
  }

  const focusNote = () => reviewing.named(() => parts.note.focus());

  /* Step in the gallery's order, or (with `source`) in that of the source. */
  function step(by, source = false) {
    const index = current();
    if (index === null) return;
    const order = source ? null : gallery.order();
    const at = source ? index : order.indexOf(index);
    const target = source ? at + by : order[at < 0 ? 0 : at + by];
    if (target !== undefined && target >= 0 && target < table.count) go(target);
  }

  /* To the next frame in the gallery's order that has no verdict yet. */
  function nextOpen() {
    const order = gallery.order();
    const at = order.indexOf(current());
    // What moments hide comes last.
    const rest = [...order.slice(at + 1), ...order.slice(0, Math.max(at, 0)), ...gallery.rest()];
    const target = rest.find((index) => !verdicts.get(table.name(index))?.verdict);
    if (target === undefined) announce("every frame of the gallery has a verdict", true);
    else go(target);
  }

  function go(index) {
    state.set({ frame: table.name(index), view: "frame", region: null });
  }

  async function show(index, playing) {
    if (!(await stage.show(index))) return;
    probe.fill();
    clearTimeout(later);
    // What takes counting waits for a frame that stays; the boxes of another frame are not its own.
    stage.boxes.style.display = playing ? "none" : "";
    if (!playing) showMore(index);
    // Values of layers that are not shown can wait, and need not be read while frames rush by.
    const showRest = () => {
      if (stage.shown() !== index) return;
      stage.boxes.style.display = "";
      showMore(index);
    };
    later = setTimeout(() => probe.loadAll(index).then(showRest), playing ? 400 : 30);
  }

  /* The legend of the stage's layer, what is flagged, and the regions. */
  function showMore(index) {
    const [layer] = stage.layersOf(index, state.get());
    const contents = layer ? layers.needs(layer) : [];
    const found = contents.map((content) => maps.peek(table.place(index), content));
    showLegend(layer && found.every(Boolean) ? layers.legendOf(layer, found) : null);
    showFlagged(index);
    regions.update(index);
    showSubject();
  }

  /* Replace the legend; the focus stays on the class that has it. */
  function showLegend(legend) {
    const focused = document.activeElement;
    const chosen = parts.legends.contains(focused) ? focused.textContent : null;
    parts.legends.replaceChildren(...[legend].filter(Boolean));
    if (chosen === null) return;
    const buttons = [...parts.legends.querySelectorAll("button")];
    buttons.find(({ textContent }) => textContent === chosen)?.focus();
  }

  /* Whether a verdict is on the frame or on the chosen region of it. */
  function showSubject() {
    const region = regions.chosen() ? state.get().region : null;
    parts.subject.textContent =
      region === null
        ? "Judging the frame"
        : `Judging region ${region + 1} of ${regions.shown().length}`;
    parts.whole.disabled = region === null;
    showVerdict();
  }

  /* How many pixels of a map lie at or above a threshold: of all, and by their label (0 normal,
     1 anomaly), which may be null. */
  function countFlagged(map, threshold, label) {
    const flagged = [0, 0];
    const pixels = [0, 0];
    let all = 0;
    for (let i = 0; i < map.codes.length; i++) {
      const over = map.value(i) >= threshold ? 1 : 0;
      all += over;
      const kind = label?.codes[i];
      if (kind === 0 || kind === 1) {
        flagged[kind] += over;
        pixels[kind]++;
      }
    }
    return { all, flagged, pixels };
  }

  const percent = (part, whole) => `${((100 * part) / whole).toFixed(2)} %`;

  /* The map of the anomaly label where it is outlined, else null: it must not lead a reviewer. */
  function outlinedLabel(index) {
    const seen = stage.outlined(index) && table.has(index, "label/anomaly");
    return seen ? maps.peek(table.place(index), "label/anomaly") : null;
  }

  /* So many pixels as a share of those that count. */
  const shareOfFrame = (pixels, { valued, hasGaps }) =>
    `${percent(pixels, valued)} of the ${hasGaps ? "pixels with a value" : "frame"}`;

  /* How much of the frame, of its labelled anomaly and of the rest lies at or above the
     threshold. */
  function showFlagged(index) {
    if (!parts.flagged) return;
    const { flags, score } = state.get();
    const threshold = flags ? table.thresholdOf(state.get()) : null;
    const map = score ? maps.peek(table.place(index), score) : null;
    parts.flagged.textContent = "";
    if (threshold === null || !map) return;
    const label = outlinedLabel(index);
    const { all, flagged, pixels } = countFlagged(map, threshold, label);
    const name = layers.name(score);
    const words = [`${name} ≥ ${thresholdText(threshold)}: ${shareOfFrame(all, map)}`];
    if (pixels[1]) words.push(`${percent(flagged[1], pixels[1])} of the labelled anomaly`);
    if (pixels[0]) words.push(`${percent(flagged[0], pixels[0])} of the normal pixels`);
    const ignored = label ? map.codes.length - pixels[0] - pixels[1] : 0;
    if (ignored) words.push(`the label ignores ${percent(ignored, map.codes.length)} of the frame`);
    const [rows, columns] = stage.size();
    const isShrunk = map.width < columns || map.height < rows;
    const of = isShrunk
      ? ` (counted on the page's map of ${map.width} x ${map.height} pixels)`
      : "";
    parts.flagged.textContent = words.join(", ") + of;
  }

  /* Fields of the address whose change draws the panes anew, and those that only move them. */
  const STAGED = [
    "frame",
    "view",
    "layer",
    "only",
    "flags",
    "threshold",
    "score",
    "outline",
    "panes",
    "second",
    "third",
    "fourth",
  ];
  const PLACED = ["opacity", "zoom", "x", "y", "probe"];

  function update(now, changed) {
    if (now.view !== "frame") return;
    const index = current();
    if (index === null) {
      const first = gallery.order()[0] ?? 0;
      state.set({ frame: table.name(first) });
      return;
    }
    if (changed.has("frame") || changed.has("view")) showHead(index);
    if (changed.has("view")) stage.element.focus({ preventScroll: true });
    syncControls(now);
    if (STAGED.some((field) => changed.has(field))) showAnew();
    else if (PLACED.some((field) => changed.has(field))) stage.place();
    if (changed.has("region")) {
      regions.update(stage.shown());
      showSubject();
    }
    showMarking(now.marking, changed.has("marking"));
    if (changed.has("probe")) probe.fill();
  }

  /* Whether the next drag draws a box around what was missed. */
  function showMarking(marking, isNew) {
    document.getElementById("panes").classList.toggle("marking", marking);
    parts.mark.setAttribute("aria-pressed", String(marking));
    if (!marking || !isNew) return;
    // On a phone the button lies below the picture, which may be scrolled out of sight.
    document.getElementById("panes").scrollIntoView({ block: "nearest" });
    stage.element.focus({ preventScroll: true });
    const keys = ", or set two corners with the arrows and Enter";
    announce(`drag a box around what was missed${FINGER.matches ? " with a finger" : keys}`, true);
  }

  function showAnew() {
    showing = show(current(), segunc.timeline.playing());
  }

  function showHead(index) {
    const time = table.time(index);
    const order = gallery.order();
    const at = order.indexOf(index);
    const where = [
      at >= 0 ? `${at + 1} of ${order.length} in the gallery` : "not in the gallery's filter",
    ];
    if (time !== null) where.push(segunc.seconds(time));
    const name = document.getElementById("frame-name");
    name.replaceChildren(table.name(index), element("small", {}, where.join(" · ")));
    const problems = table.problems(index).map((text) => element("li", { class: "notice" }, text));
    parts.problems.replaceChildren(...problems);
    seen = seenOf();
    showVerdict();
  }

  /* What the reviewer's verdicts let be seen of a frame. */
  let seen = "";
  function seenOf() {
    const { frame } = state.get();
    return `${frame}/${verdicts.judged(frame)}/${verdicts.revealed(frame)}`;
  }

  /* The verdict on the chosen region, or else on the frame. */
  function showVerdict() {
    const entry = verdicts.get(state.get().frame);
    const region = regions.chosen();
    const judged = region ? region.entry : entry;
    const verdict = judged?.verdict ?? "";
    const derived = !region && Boolean(entry?.derived);
    for (const choice of parts.verdicts) {
      const kind = choice.dataset.verdict;
      showChosen(choice, kind === verdict, derived);
      choice.disabled = Boolean(region) && !Object.hasOwn(verdicts.REGION_WORDS, kind);
    }
    parts.takeBack.disabled = !verdict || derived;
    showRemark();
    showOthers();
    const note = entry?.note ?? "";
    // To set the same text would move the cursor of who writes it.
    if (parts.note.value !== note) parts.note.value = note;
  }

  /* What contradicts the verdict on the frame. */
  function showRemark() {
    const remark = verdicts.contradiction(state.get().frame);
    parts.remark.hidden = !remark;
    if (parts.remark.textContent !== remark) parts.remark.textContent = remark;
  }

  /* Mark the button of a verdict as chosen, or as what follows from the verdicts on regions. */
  function showChosen(choice, chosen, derived) {
    choice.setAttribute("aria-pressed", String(chosen && !derived));
    choice.classList.toggle("derived", chosen && derived);
    choice.title = chosen && derived ? "follows from the verdicts on its regions" : "";
  }

  function showOthers() {
    const name = verdicts.reviewer();
    const opinions = verdicts.opinions(state.get().frame);
    const others = name === null ? opinions : opinions.filter(({ reviewer }) => reviewer !== name);
    const lines = others.map(({ reviewer, verdict, note, derived }) => {
      const said = derived ? `a region: ${derived}` : (verdicts.WORDS[verdict] ?? "note");
      const words = `${reviewer || "no name"}: ${said}`;
      return element("li", {}, note ? `${words} (${note})` : words);
    });
    parts.others.replaceChildren(...lines);
  }

  function syncControls(now) {
    const index = current();
    for (const input of parts.layers) {
      input.checked = input.value === now.layer;
      input.disabled = !layers.available(index, input.value);
      input.title = layers.isHidden(index, input.value) ? layers.HIDDEN : "";
    }
    parts.panes.value = now.panes;
    parts.opacity.value = now.opacity;
    if (parts["show-outline"]) {
      const isHidden = layers.isHidden(index, "label/anomaly");
      parts["show-outline"].checked = stage.outlined(index) && !isHidden;
      parts["show-outline"].disabled = isHidden;
      parts["show-outline"].title = isHidden ? layers.HIDDEN : "";
    }
    if (now.score) syncThreshold(now);
  }

  function syncThreshold(now) {
    parts.flags.checked = now.flags;
    const [, high] = sliderRange();
    const threshold = shownThreshold(now);
    parts.threshold.value = 1000 * layers.shareOf(now.score, threshold, high);
    const words = `${layers.name(now.score)} at or above ${thresholdText(threshold)}`;
    parts.threshold.setAttribute("aria-valuetext", words);
    if (document.activeElement !== parts.number) parts.number.value = thresholdText(threshold);
    const recorded = table.recordedThreshold(now.score);
    parts.recorded.textContent = `Back to the recorded ${thresholdText(recorded)}`;
    parts.recorded.hidden = recorded === null || threshold === recorded;
  }

  function start() {
    build();
    probe.start();
    document.getElementById("previous").addEventListener("click", () => step(-1));
    document.getElementById("next").addEventListener("click", () => step(1));
    verdicts.onChange(() => {
      if (state.get().view !== "frame" || current() === null) return;
      syncControls(state.get());
      regions.update(stage.shown());
      showSubject();
      if (seen === seenOf()) return;
      seen = seenOf();
      showAnew();
    });
  }

  segunc.frame = {
    start,
    update,
    step,
    nextOpen,
    go,
    judge,
    undo,
    toggle,
    chooseLayer,
    nextLayer,
    toggleOnward: () => keepOnward(!onward),
    VERDICT_KEYS,
    /* Resolves when the frame asked for last is seen. */
    ready: () => showing,
    moveThreshold(by) {
      const now = state.get();
      const share = layers.shareOf(now.score, shownThreshold(now), sliderRange()[1]);
      setThreshold(fromSlider(1000 * (share + by)));
    },
    focusNote,
    boxByKeys,
    dropBox,
  };
})(segunc);
