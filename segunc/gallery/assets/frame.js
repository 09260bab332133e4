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
    format,
    announce,
  } = segunc;
  const { page } = segunc.data;
  const panel = document.getElementById("panel");
  const parts = {};
  let showing = null; // resolves when the frame asked for last is on the stage
  let later = null;

  const current = () => table.index(state.get().frame);

  function slider(id, label, low, high, step, field) {
    const input = element("input", {
      type: "range",
      id,
      min: low,
      max: high,
      step,
      oninput: () => state.set({ [field]: Number(input.value) }),
    });
    parts[id] = input;
    return element("label", { class: "row" }, element("span", {}, label), input);
  }

  function check(id, label, field, key) {
    const input = element("input", { type: "checkbox", id, onchange: () => toggle(field) });
    parts[id] = input;
    return element("label", { class: "check" }, input, label, " ", element("kbd", {}, key));
  }

  function group(title, ...children) {
    return element("fieldset", {}, element("legend", {}, title), ...children);
  }

  function build() {
    document.getElementById("layers").append(
      ...layers.every.map((layer) => {
        const input = element("input", {
            type: "radio",
            name: "layer",
            value: layer,
            onchange: () => chooseLayer(layer),
          }),
          key = layers.keyOf(layer);
        return element(
          "label",
          {},
          input,
          layers.title(layer),
          key ? " " : null,
          key ? element("kbd", {}, key) : null,
        );
      }),
    );
    parts.panes = element(
      "select",
      { id: "panes-count", onchange: () => state.set({ panes: parts.panes.value }) },
      element("option", { value: "1" }, "one"),
      element("option", { value: "2" }, "two"),
      element("option", { value: "4" }, "four"),
    );
    parts.number = element("input", {
      type: "number",
      step: "any",
      id: "threshold-number",
      "aria-label": "Threshold",
      oninput: () => {
        if (parts.number.value !== "") setThreshold(Number(parts.number.value));
      },
    });
    const range = element("input", {
      type: "range",
      id: "threshold",
      min: 0,
      max: 1000,
      step: 1,
      "aria-label": "Threshold",
      oninput: () => setThreshold(fromSlider(Number(range.value))),
    });
    parts.threshold = range;
    parts.flagged = element("p", { id: "flagged", class: "small", role: "status" });
    parts.legends = element("div", { id: "legends" });
    parts.problems = element("ul", { id: "problems" });
    parts.note = element("textarea", {
      id: "note",
      rows: 1,
      placeholder: "Note",
      "aria-label": "Note on this frame",
      oninput: () => verdicts.set(state.get().frame, { note: parts.note.value }),
      onpointerdown: (event) => {
        if (verdicts.reviewer() !== null) return;
        event.preventDefault();
        focusNote();
      },
    });
    parts.verdicts = Object.entries(verdicts.WORDS).map(([name, words]) =>
      element(
        "button",
        { type: "button", "data-verdict": name, onclick: () => judge(name) },
        words,
        " ",
        element("kbd", {}, VERDICT_KEYS[name]),
      ),
    );
    parts.others = element("ul", { id: "others", class: "small" });
    parts.onward = element("input", {
      type: "checkbox",
      id: "onward",
      onchange: () => keepOnward(parts.onward.checked),
    });
    parts.onward.checked = onward;
    const mark = element(
      "button",
      { type: "button", id: "mark", onclick: () => toggle("marking") },
      "Box a missed object ",
      element("kbd", {}, "l"),
    );
    parts.mark = mark;
    panel.replaceChildren(
      group(
        "Verdict",
        element("div", { class: "buttons" }, ...parts.verdicts),
        parts.note,
        parts.others,
        element(
          "label",
          { class: "check" },
          parts.onward,
          "then to the next unjudged ",
          element("kbd", {}, "q"),
        ),
      ),
      group("Regions", regions.list, regions.note, mark),
      group(
        "Layer",
        slider("opacity", "opacity", 0, 1, 0.05, "opacity"),
        element("label", { class: "row" }, "panes ", parts.panes, element("kbd", {}, "P")),
        layers.every.includes("label/anomaly")
          ? check("show-outline", "outline the labelled anomaly", "outline", "o")
          : null,
        parts.legends,
      ),
      table.scores.length
        ? group(
            "Threshold",
            check("flags", "show what would be flagged", "flags", "t"),
            element("div", { class: "row" }, range, parts.number),
            parts.flagged,
          )
        : null,
      parts.problems,
    );
  }

  const VERDICT_KEYS = {
    "nothing-wrong": "h",
    "true-alarm": "a",
    "false-alarm": "s",
    missed: "m",
    unsure: "u",
  };
  const ONWARD_KEY = "segunc-review-onward";
  let onward = false;
  try {
    onward = localStorage.getItem(ONWARD_KEY) === "yes";
  } catch {
    /* as long as the page */
  }

  function keepOnward(now) {
    onward = parts.onward.checked = now;
    announce(
      onward
        ? "each verdict on a frame leads to the next unjudged one"
        : "a verdict stays at its frame",
      true,
    );
    try {
      localStorage.setItem(ONWARD_KEY, onward ? "yes" : "no");
    } catch {
      /* as long as the page */
    }
  }

  /* The slider covers the score's range and what its maxima reach beyond it. */
  function sliderRange() {
    const { score } = state.get(),
      { low, high } = page.scores[score];
    return [
      low,
      segunc.data.frames.reduce(
        (highest, { statistics }) => Math.max(highest, statistics[score]?.max ?? low),
        high,
      ),
    ];
  }
  function fromSlider(position) {
    const [low, high] = sliderRange(),
      { score } = state.get();
    return Number(
      Math.min(high, Math.max(low, layers.valueAt(score, position / 1000, high))).toPrecision(4),
    );
  }

  function setThreshold(threshold) {
    state.set({ threshold, flags: true });
  }

  function toggle(field) {
    const changes = { [field]: !state.get()[field] };
    if (field === "flags" && changes.flags && state.get().threshold === null)
      changes.threshold = defaultThreshold(state.get().score);
    state.set(changes);
  }

  function chooseLayer(layer) {
    if (!layers.every.includes(layer)) return;
    const score = layers.scoreOf(layer);
    // The threshold belongs to a score: it follows the layer, and starts anew.
    const statistic = table.usual(score, state.get().statistic);
    state.set(
      score && score !== state.get().score
        ? { layer, score, statistic, threshold: state.get().flags ? defaultThreshold(score) : null }
        : { layer },
    );
    announce(layers.title(layer));
  }

  const defaultThreshold = table.usualThreshold;

  /* Judge the region that is chosen, else the frame; "" takes a verdict back, and a verdict given
     twice stays. */
  function judge(verdict, frame = state.get().frame) {
    reviewing.named(() => {
      const here = state.get().view === "frame";
      if (here && regions.judge(verdict)) return;
      const had = verdicts.get(frame);
      verdicts.set(frame, { verdict });
      const words = verdict ? verdicts.WORDS[verdict] : "verdict taken back";
      announce(
        `${verdict && had?.verdict === verdict && !had.derived ? "already " : ""}${words} · ${frame}`,
        true,
      );
      if (here && verdict && onward) nextOpen();
      // its label may be seen now
      else if (here && verdicts.blind()) showing = show(current(), false);
    }, true);
  }

  function undo(again) {
    const change = verdicts.undo(again);
    if (change && state.get().view === "frame" && table.index(change.frame) !== null)
      go(table.index(change.frame));
    announce(change?.words ?? (again ? "nothing to do again" : "nothing to undo"), true);
  }

  function nextLayer(by) {
    const there = layers.every.filter((layer) => layers.available(current(), layer)),
      at = there.indexOf(state.get().layer);
    chooseLayer(there[(at + by + there.length) % there.length]);
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
    const order = gallery.order(),
      at = order.indexOf(current());
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
    later = setTimeout(
      () =>
        probe.loadAll(index).then(() => {
          if (stage.shown() !== index) return;
          stage.boxes.style.display = "";
          showMore(index);
        }),
      playing ? 400 : 30,
    );
  }

  /* The legend of the stage's layer, what is flagged, and the regions. */
  function showMore(index) {
    const [layer] = stage.layersOf(index, state.get());
    const found = layer
      ? layers.needs(layer).map((content) => maps.peek(table.place(index), content))
      : [];
    const chosen = parts.legends.contains(document.activeElement)
      ? document.activeElement.textContent
      : null;
    parts.legends.replaceChildren(
      ...[layer && found.every(Boolean) ? layers.legendOf(layer, found) : null].filter(Boolean),
    );
    if (chosen)
      [...parts.legends.querySelectorAll("button")]
        .find(({ textContent }) => textContent === chosen)
        ?.focus();
    showFlagged(index);
    regions.update(index);
  }

  /* How much of the frame, of its labelled anomaly and of the rest lies at or above the threshold. */
  function showFlagged(index) {
    const { flags, threshold, score } = state.get();
    const map = score ? maps.peek(table.place(index), score) : null;
    if (!parts.flagged) return;
    if (!flags || threshold === null || !map) {
      parts.flagged.textContent = "";
      return;
    }
    const label = table.has(index, "label/anomaly")
      ? maps.peek(table.place(index), "label/anomaly")
      : null;
    const flagged = [0, 0],
      pixels = [0, 0];
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
    const share = (part, whole) => `${((100 * part) / whole).toFixed(2)} %`;
    const words = [
      `${layers.name(score)} ≥ ${format(threshold)}: ${share(all, map.codes.length)} of the frame`,
    ];
    if (pixels[1]) words.push(`${share(flagged[1], pixels[1])} of the labelled anomaly`);
    if (pixels[0]) words.push(`${share(flagged[0], pixels[0])} of the normal pixels`);
    parts.flagged.textContent = words.join(", ");
  }

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
  const PLACED = ["opacity", "zoom", "x", "y", "probe", "outline"];

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
    if (STAGED.some((field) => changed.has(field)))
      showing = show(index, segunc.timeline.playing());
    else if (PLACED.some((field) => changed.has(field))) stage.place();
    if (changed.has("region")) regions.update(stage.shown());
    document.getElementById("panes").classList.toggle("marking", now.marking);
    parts.mark.setAttribute("aria-pressed", String(now.marking));
    if (changed.has("probe")) probe.fill();
  }

  function showHead(index) {
    const time = table.time(index),
      order = gallery.order(),
      at = order.indexOf(index);
    const where = [
      at >= 0 ? `${at + 1} of ${order.length} in the gallery` : "not in the gallery's filter",
    ];
    if (time !== null) where.push(segunc.seconds(time));
    document
      .getElementById("frame-name")
      .replaceChildren(table.name(index), element("small", {}, where.join(" · ")));
    parts.problems.replaceChildren(
      ...table.problems(index).map((text) => element("li", { class: "notice" }, text)),
    );
    showVerdict();
  }

  function showVerdict() {
    const entry = verdicts.get(state.get().frame);
    for (const button of parts.verdicts) {
      const said = entry?.verdict === button.dataset.verdict;
      button.setAttribute("aria-pressed", String(said && !entry.derived));
      button.classList.toggle("derived", Boolean(said && entry.derived));
      button.title = said && entry.derived ? "follows from the verdicts on its regions" : "";
    }
    const others = verdicts
      .opinions(state.get().frame)
      .filter((one) => one.reviewer !== (verdicts.reviewer() ?? entry?.reviewer));
    parts.others.replaceChildren(
      ...others.map((one) =>
        element(
          "li",
          {},
          `${one.reviewer || "no name"}: ${verdicts.WORDS[one.verdict] ?? "note"}${one.note ? ` (${one.note})` : ""}`,
        ),
      ),
    );
    if (parts.note.value !== (entry?.note ?? "")) parts.note.value = entry?.note ?? "";
  }

  function syncControls(now) {
    const index = current();
    for (const input of document.querySelectorAll("#layers input")) {
      input.checked = input.value === now.layer;
      input.disabled = !layers.available(index, input.value);
    }
    parts.panes.value = now.panes;
    parts.opacity.value = now.opacity;
    if (parts["show-outline"]) parts["show-outline"].checked = now.outline;
    if (!now.score) return;
    parts.flags.checked = now.flags;
    const [low, high] = sliderRange(),
      threshold = now.threshold ?? defaultThreshold(now.score);
    parts.threshold.value = 1000 * layers.shareOf(now.score, threshold, high);
    parts.threshold.setAttribute(
      "aria-valuetext",
      `${layers.name(now.score)} at or above ${format(threshold)}`,
    );
    if (document.activeElement !== parts.number) parts.number.value = threshold;
  }

  function start() {
    build();
    probe.start();
    document.getElementById("previous").addEventListener("click", () => step(-1));
    document.getElementById("next").addEventListener("click", () => step(1));
    verdicts.onChange(() => {
      if (state.get().view !== "frame") return;
      showVerdict();
      syncControls(state.get());
      regions.update(stage.shown());
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
      const { score, threshold } = state.get(),
        now = threshold ?? defaultThreshold(score);
      setThreshold(fromSlider(1000 * (layers.shareOf(score, now, sliderRange()[1]) + by)));
    },
    focusNote,
  };
})(segunc);
