"use strict";
/* The scores of all frames in the order of the source: scrub, play, jump to peaks. */
(function (segunc) {
  const { element, svg, table, state, verdicts, gallery, seconds } = segunc;
  const { page } = segunc.data;
  const footer = document.getElementById("timeline");
  const play = element(
    "button",
    { type: "button", id: "play", title: "Play or pause (space)", onclick: togglePlay },
    "▶ Play",
  );
  const label = element("p", { id: "timeline-label" });
  const legend = element("p", { id: "timeline-legend" });
  const cursor = element("i", { id: "cursor" });
  const ends = element("span", { class: "ends" });
  const axis = element("span", { class: "axis" });
  const curves = svg("svg", {
    viewBox: `0 0 ${Math.max(1, table.count - 1)} 100`,
    preserveAspectRatio: "none",
  });
  const marks = element("span");
  const plot = element("div", { class: "plot" }, curves, marks, cursor, axis);
  const chart = element(
    "div",
    {
      id: "chart",
      class: "chart",
      tabindex: "0",
      role: "slider",
      "aria-label": "Frame in the order of the source",
      "aria-valuemin": "1",
    },
    ends,
    plot,
  );
  const SPEEDS = [0.25, 0.5, 1, 2, 4];
  const AHEAD = 6; // frames that are decoded before they are seen
  const USUAL_PAUSE = 200; // milliseconds between frames without times
  const speed = element(
    "select",
    { id: "speed", "aria-label": "Speed", title: "Speed ({ and })" },
    ...SPEEDS.map((factor) =>
      element("option", { value: factor, selected: factor === 1 }, `${factor} ×`),
    ),
  );
  const indices = Array.from({ length: table.count }, (_, index) => index);
  let timer = null;
  let due = 0;
  let peaks = [];
  let drawn = "";

  /* Frames whose statistic is the largest of the second (or the 25th of the set) around them, and
     above the mean. */
  function findPeaks(values) {
    const reach = Math.max(1, Math.round((page.fps ?? table.count / 25) / 2));
    const numbers = values.filter((v) => v !== null);
    const mean = numbers.reduce((a, b) => a + b, 0) / numbers.length;
    return indices.filter(
      (i) =>
        values[i] !== null &&
        values[i] > mean &&
        values
          .slice(Math.max(0, i - reach), i + reach + 1)
          .every(
            (value, j) =>
              value === null ||
              value < values[i] ||
              (value === values[i] && Math.max(0, i - reach) + j >= i),
          ),
    );
  }

  const at = () => table.index(state.get().frame) ?? 0;
  const xOf = (index) => (table.count > 1 ? index / (table.count - 1) : 0.5);

  /* Where the frame is, on a chart that is drawn anew only when it shows something else: frames
     pass quickly. */
  function draw() {
    const current = state.get();
    if (!current.score) return;
    const key = JSON.stringify([innerWidth, current.score, current.statistic, current.threshold]);
    if (key !== drawn) {
      drawn = key;
      drawChart(current);
    }
    cursor.style.left = `${100 * xOf(at())}%`;
    showLabel(current);
  }

  function drawChart({ score, statistic, threshold }) {
    const values = indices.map((i) => table.value(i, score, statistic));
    // One scale for the whole set, written at its ends: that of the set's own values, or slow
    // changes would be flat.
    const every = values.filter((value) => value !== null);
    let low = every.reduce((a, b) => Math.min(a, b), Infinity);
    let high = every.reduce((a, b) => Math.max(a, b), -Infinity);
    // Sums over regions are never below 0.
    if (!(low < high)) [low, high] = low === 0 ? [0, 1] : [low - 0.5, low + 0.5];
    const yOf = (value) => 80 - ((value - low) / (high - low)) * 66;
    const curve = (of) =>
      of
        .map((value, i) =>
          value === null ? "" : `${(of[i - 1] ?? null) === null ? "M" : "L"}${i} ${yOf(value)}`,
        )
        .join("");
    const line = (name, d) => svg("path", { class: name, d });
    // Below the curves: where an anomaly is labelled, and where a verdict was given.
    const wide = Math.max(0.8, table.count / 800);
    const disputed = (i) => verdicts.reviewer() === null && verdicts.disagree(table.name(i));
    const verdict = (i) => (disputed(i) ? null : verdicts.usual(table.name(i))?.verdict);
    const stripe = (name, y, holds) =>
      line(
        `stripe ${name}`,
        indices
          .filter(holds)
          .map((i) => `M${i - wide / 2} ${y}h${wide}`)
          .join(""),
      );
    const flagged =
      threshold !== null && table.inUnit(statistic) && threshold >= low && threshold <= high;
    curves.replaceChildren(
      line("threshold", flagged ? `M0 ${yOf(threshold)}H${table.count - 1}` : ""),
      line("first", curve(values)),
      stripe("labelled", 89, (i) => table.objects(i)),
      ...Object.keys(verdicts.WORDS).map((name) => stripe(name, 96, (i) => verdict(i) === name)),
      stripe("disputed", 96, disputed),
    );
    peaks = findPeaks(values);
    const place = (words, index, top) => {
      const mark = element("span", {}, words);
      mark.style.left = `${100 * xOf(index)}%`;
      mark.style.setProperty("--at", xOf(index));
      if (top !== undefined) mark.style.top = `${top}%`;
      return mark;
    };
    marks.replaceChildren(...peaks.map((index) => place("▾", index, yOf(values[index]))));
    axis.replaceChildren(...ticks().map(([index, words]) => place(words, index)));
    ends.replaceChildren(
      ...[high, low].map((end) => element("span", {}, gallery.short(statistic, end))),
    );
  }

  const LANES = 3;

  /* Bars of the events, which lead to their peaks: the strongest first, each in the first lane that
     has room for it. */
  function eventBars() {
    const lanes = Array.from({ length: LANES }, () => []);
    const bars = [];
    for (const [number, alarm] of segunc.alarms.leaders) {
      const { start: from, end: to } = page.events[number];
      const isFree = (taken) => taken.every(([first, last]) => to < first || from > last);
      const lane = lanes.findIndex(isFree);
      if (lane < 0) continue;
      lanes[lane].push([from, to]);
      const bar = element("i", {
        title: eventWords(page.events[number]),
        "data-lane": lane,
        onclick: () => segunc.alarms.openRecorded(alarm),
      });
      bar.style.left = `${100 * xOf(from)}%`;
      bar.style.width = `${100 * (xOf(to) - xOf(from))}%`;
      bars.push(bar);
    }
    return bars;
  }

  function eventWords({ start: from, end: to, peak, frames }) {
    const [first, last, middle] = [from, to, peak].map((index) => seconds(table.time(index)));
    const count = `${frames} frame${frames === 1 ? "" : "s"}`;
    return `event ${first} to ${last}, ${count}: click for its peak at ${middle}`;
  }

  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600];

  /* Places of the axis and their words: the times of their frames, else numbers of frames. */
  function ticks() {
    const times = indices.map(table.time);
    const timed = times.every((time, i) => time !== null && (i === 0 || time >= times[i - 1]));
    const span = timed ? times.at(-1) - times[0] : table.count;
    const most = Math.max(2, Math.floor(innerWidth / 110));
    const words = (index) => [index, seconds(times[index]).replace(/\.00$/, "")];
    if (timed && hasGaps(times)) {
      const every = Math.ceil(table.count / most);
      return indices.filter((index) => index % every === 0).map(words);
    }
    const step = STEPS.find((s) => span / s <= most) ?? 3600 * Math.ceil(span / 3600 / most);
    if (!timed) {
      const numbered = indices.filter((index) => index % step === 0);
      return numbered.map((index) => [index, String(index + 1)]);
    }
    let next = Math.ceil(times[0] / step) * step;
    const places = [];
    times.forEach((time, index) => {
      if (time < next) return;
      places.push(words(index));
      next = (Math.floor(time / step) + 1) * step;
    });
    return places;
  }

  /* Whether frames are left out between others, as where only alarms are kept: the axis has the
     frames at equal distances, so whole steps of time are not. */
  function hasGaps(times) {
    const mean = (times.at(-1) - times[0]) / (times.length - 1);
    return times.some((time, index) => index > 0 && time - times[index - 1] > 2 * mean);
  }

  function showLabel(current) {
    const index = at();
    const time = table.time(index);
    const words = [`frame ${index + 1} of ${table.count}`];
    if (time !== null) words.push(seconds(time));
    const statistic = gallery.statisticOf(index, current) ?? "no value";
    words.push(`${segunc.layers.name(current.score)}: ${statistic}`);
    label.textContent = words.join(" · ");
    legend.textContent = legendWords(current).join(" · ");
    chart.setAttribute("aria-valuenow", index + 1);
    chart.setAttribute("aria-valuemax", table.count);
    chart.setAttribute("aria-valuetext", words.join(", "));
  }

  function legendWords({ score, statistic }) {
    const name = gallery.statisticWords(statistic, score);
    const sum = statistic === "region" ? ", area times excess," : "";
    const words = [`${name}${sum} of ${segunc.layers.name(score)}, every frame`, "▾ peaks"];
    if (page.events.length) words.push("bars: events");
    if (table.everHas("label/anomaly")) {
      const isHidden = indices.some((i) => !verdicts.revealed(table.name(i)));
      words.push(`blue below: labelled anomaly${isHidden ? ", of judged frames" : ""}`);
    }
    if (indices.some((i) => verdicts.usual(table.name(i)))) words.push("lowest line: verdicts");
    if (indices.some((i) => verdicts.reviewer() === null && verdicts.disagree(table.name(i)))) {
      words.push("black in it: reviewers disagree");
    }
    return words;
  }

  function go(index) {
    segunc.frame.go(Math.min(table.count - 1, Math.max(0, index)));
  }

  function scrub(event) {
    const box = plot.getBoundingClientRect();
    go(Math.round(((event.clientX - box.left) / box.width) * (table.count - 1)));
  }

  function jump(direction) {
    const index = at();
    const target =
      direction > 0 ? peaks.find((peak) => peak > index) : peaks.findLast((peak) => peak < index);
    if (target === undefined) segunc.announce("no further peak");
    else go(target);
  }

  const playing = () => timer !== null;

  /* Frame after frame, no faster than the source; a frame that takes longer is waited for, none is
     left out. */
  function togglePlay() {
    if (playing()) stop();
    else {
      if (at() >= table.count - 1) segunc.frame.go(0);
      play.textContent = "❚❚ Pause";
      due = performance.now();
      tick();
    }
  }

  function stop() {
    clearTimeout(timer);
    timer = null;
    play.textContent = "▶ Play";
  }

  /* Milliseconds between a frame and the next, a second at most. */
  function pauseAfter(index) {
    const from = table.time(index);
    const to = table.time(index + 1);
    if (from === null || to === null || to < from) return USUAL_PAUSE;
    return Math.min(1000, 1000 * (to - from));
  }

  async function goOn() {
    if (at() >= table.count - 1) {
      stop();
      return;
    }
    segunc.frame.go(at() + 1);
    await segunc.frame.ready();
    if (playing()) tick();
  }

  /* Frames are due at their times, and one that is late does not delay the next beyond its own;
     what comes is decoded meanwhile. */
  function tick() {
    const index = at();
    due = Math.max(due + pauseAfter(index) / Number(speed.value), performance.now());
    const last = Math.min(index + AHEAD, table.count - 1);
    for (let ahead = index + 1; ahead <= last; ahead++) segunc.stage.prepare(ahead);
    timer = setTimeout(goOn, due - performance.now());
  }

  function faster(by) {
    const now = SPEEDS.indexOf(Number(speed.value));
    speed.value = SPEEDS[Math.min(SPEEDS.length - 1, Math.max(0, now + by))];
    segunc.announce(`speed ${speed.value} ×`, true);
  }

  function onKey(event) {
    const step = {
      ArrowLeft: -1,
      ArrowRight: 1,
      PageUp: -25,
      PageDown: 25,
      Home: -table.count,
      End: table.count,
    }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    go(at() + step);
  }

  function toolButton(words, title, onclick) {
    const attributes = { type: "button", title, "aria-label": title, onclick };
    return element("button", attributes, words);
  }

  function buildTools() {
    return element(
      "div",
      { class: "timeline-tools" },
      toolButton("◂", "Frame before, in source order (,)", () => go(at() - 1)),
      play,
      toolButton("▸", "Frame after, in source order (.)", () => go(at() + 1)),
      speed,
      toolButton("⇤ Peak", "Previous peak ([)", () => jump(-1)),
      toolButton("Peak ⇥", "Next peak (])", () => jump(1)),
      label,
      legend,
    );
  }

  function buildEvents() {
    const attributes = { id: "events", "aria-hidden": "true", hidden: !page.events.length };
    return element("div", attributes, ...eventBars());
  }

  function start() {
    if (!table.scores.length || table.count < 2) {
      footer.hidden = true;
      return;
    }
    footer.append(buildTools(), buildEvents(), chart);
    chart.addEventListener("pointerdown", (event) => {
      chart.setPointerCapture(event.pointerId);
      scrub(event);
      chart.addEventListener("pointermove", scrub);
    });
    for (const name of ["pointerup", "pointercancel"]) {
      chart.addEventListener(name, () => chart.removeEventListener("pointermove", scrub));
    }
    chart.addEventListener("keydown", onKey);
    verdicts.onChange(() => {
      drawn = "";
      draw();
    });
  }

  function update(current, changed) {
    if (changed.has("view") && current.view !== "frame" && playing()) stop();
    const fields = ["frame", "score", "statistic", "threshold", "view"];
    if (fields.some((field) => changed.has(field))) draw();
  }

  segunc.timeline = { start, update, jump, go, faster, togglePlay, playing, peaks: () => peaks };
})(segunc);
