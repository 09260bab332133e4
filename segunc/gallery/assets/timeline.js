"use strict";
/* The scores of all frames in the order of the source: scrub, play, jump to peaks. */
(function (segunc) {
  const { element, table, state, verdicts, format, seconds } = segunc;
  const { page } = segunc.data;
  const footer = document.getElementById("timeline");
  const canvas = element("canvas", { id: "chart", tabindex: "0", role: "slider", "aria-label": "Frame in the order of the source", "aria-valuemin": "1" });
  const play = element("button", { type: "button", id: "play", title: "Play or pause (space)", onclick: togglePlay }, "▶ Play");
  const label = element("p", { id: "timeline-label" });
  const legend = element("p", { id: "timeline-legend" });
  const cursor = element("i", { id: "cursor", "aria-hidden": "true" });
  const SPEEDS = [0.25, 0.5, 1, 2, 4], AHEAD = 6; // frames that are decoded before they are seen
  const speed = element("select", { id: "speed", "aria-label": "Speed", title: "Speed ({ and })" }, ...SPEEDS.map((factor) => element("option", { value: factor, selected: factor === 1 }, `${factor} ×`)));
  // The ends of the scale stand left of the curve, the axis below it.
  const LEFT = 58, RIGHT = 8, AXIS = 14;
  let timer = null, due = 0, peaks = [], peaksKey = "", drawn = "";

  const series = (score, statistic, model) => Array.from({ length: table.count }, (_, i) => table.value(i, score, statistic, model));

  /* Frames whose statistic is the largest of the second (or the 25th of the set) around them, and above the mean. */
  function findPeaks(values) {
    const reach = Math.max(1, Math.round((page.fps ?? table.count / 25) / 2)), found = [];
    const known = values.filter((v) => v !== null), mean = known.reduce((a, b) => a + b, 0) / known.length;
    for (let i = 0; i < values.length; i++) {
      if (values[i] === null || values[i] <= mean) continue;
      let highest = true;
      for (let j = Math.max(0, i - reach); highest && j <= Math.min(values.length - 1, i + reach); j++) {
        highest = values[j] === null || values[j] < values[i] || (values[j] === values[i] && j >= i);
      }
      if (highest) found.push(i);
    }
    return found;
  }

  const at = () => table.index(state.get().frame) ?? 0;
  const xOf = (index, width) => LEFT + (table.count > 1 ? index / (table.count - 1) : 0.5) * (width - LEFT - RIGHT);

  /* Where the frame is, on a chart that is drawn anew only when it shows something else: frames pass quickly. */
  function draw() {
    const current = state.get(), { width } = canvas.getBoundingClientRect();
    if (!width || !current.score) return;
    const key = JSON.stringify([width, current.score, current.statistic, current.model, current.threshold, getComputedStyle(footer).color]);
    if (key !== drawn) {
      drawn = key;
      drawChart(current);
    }
    cursor.style.transform = `translateX(${xOf(at(), width)}px)`;
    showLabel(current);
  }

  function drawChart(current) {
    const box = canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1;
    canvas.width = box.width * ratio;
    canvas.height = box.height * ratio;
    const context = canvas.getContext("2d"), style = getComputedStyle(footer);
    const colour = (name) => style.getPropertyValue(name).trim();
    context.scale(ratio, ratio);
    const { width, height } = box, base = height - 12 - AXIS;
    const model = current.model === "difference" ? "first" : current.model;
    const values = series(current.score, current.statistic, model);
    const second = page.compared ? series(current.score, current.statistic, model === "first" ? "second" : "first") : [];
    // One scale for the whole set, written at its ends: that of the set's own values, or slow changes would be flat.
    const [low, high] = extent([...values, ...second]);
    const yOf = (value) => base - 4 - (value - low) / (high - low) * (base - 14);
    if (table.inUnit(current.statistic) && current.threshold !== null && current.threshold >= low && current.threshold <= high) {
      context.strokeStyle = segunc.colours.key.flagged;
      context.setLineDash([4, 4]);
      line(context, [[LEFT, yOf(current.threshold)], [width - RIGHT, yOf(current.threshold)]]);
      context.setLineDash([]);
    }
    trace(context, second, width, yOf, colour("--second"), 1.5);
    trace(context, values, width, yOf, colour("--accent"), 2);
    const key = `${current.score} ${current.statistic} ${model}`;
    if (key !== peaksKey) {
      peaks = findPeaks(values);
      peaksKey = key;
    }
    context.fillStyle = colour("--ink");
    for (const index of peaks) mark(context, xOf(index, width), yOf(values[index]) - 3);
    drawMarks(context, width, base, colour);
    context.fillStyle = colour("--faint");
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.fillText(short(high), LEFT - 6, 14);
    context.fillText(short(low), LEFT - 6, base - 1);
    context.textAlign = "center";
    for (const [index, words] of ticks(width)) {
      const x = xOf(index, width);
      context.fillRect(x, height - AXIS, 1, 3);
      context.fillText(words, Math.min(Math.max(x, LEFT), width - RIGHT - 14), height - 1);
    }
  }

  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600];

  /* Places of the axis and their words: times where they go on and on, else numbers of frames. */
  function ticks(width) {
    const most = Math.max(2, Math.floor(width / 110)), times = Array.from({ length: table.count }, (_, i) => table.time(i));
    const timed = times.every((time, i) => time !== null && (i === 0 || time >= times[i - 1]));
    const span = timed ? times[table.count - 1] - times[0] : table.count;
    const step = STEPS.find((s) => span / s <= most) ?? 3600 * Math.ceil(span / 3600 / most), found = [];
    if (!timed) {
      for (let index = 0; index < table.count; index += step) found.push([index, String(index + 1)]);
      return found;
    }
    let next = Math.ceil(times[0] / step) * step;
    times.forEach((time, index) => {
      if (time < next) return;
      found.push([index, seconds(next).replace(/\.00$/, "")]);
      next = (Math.floor(time / step) + 1) * step;
    });
    return found;
  }

  const short = (value) => format(Number(value.toPrecision(4)));

  /* Smallest and largest of the values; never the same number. */
  function extent(values) {
    let low = Infinity, high = -Infinity;
    for (const value of values) {
      if (value === null) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    return low < high ? [low, high] : [low - 0.5, low + 0.5];
  }

  function line(context, points) {
    context.beginPath();
    points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.stroke();
  }

  function trace(context, values, width, yOf, colour, thickness) {
    context.strokeStyle = colour;
    context.lineWidth = thickness;
    context.beginPath();
    let gap = true;
    values.forEach((value, index) => {
      if (value !== null) context[gap ? "moveTo" : "lineTo"](xOf(index, width), yOf(value));
      gap = value === null;
    });
    context.stroke();
  }

  function mark(context, x, y) {
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x - 4, y - 6);
    context.lineTo(x + 4, y - 6);
    context.fill();
  }

  /* Below the chart: where an anomaly is labelled, and where a verdict was given. */
  function drawMarks(context, width, base, colour) {
    const wide = Math.max(1, (width - LEFT - RIGHT) / table.count);
    for (let index = 0; index < table.count; index++) {
      const x = xOf(index, width) - wide / 2;
      if (table.objects(index)) {
        context.fillStyle = colour("--labelled");
        context.fillRect(x, base + 2, wide, 3);
      }
      const verdict = verdicts.get(table.name(index))?.verdict;
      if (verdict) {
        context.fillStyle = colour(`--${verdict}`);
        context.fillRect(x, base + 7, wide, 4);
      }
    }
  }

  function showLabel(current) {
    const index = at(), time = table.time(index);
    const value = table.value(index, current.score, current.statistic, current.model);
    const words = [`frame ${index + 1} of ${table.count}`];
    if (time !== null) words.push(seconds(time));
    words.push(`${segunc.filters.statisticWords(current.statistic, current.score)} ${current.score} ${value === null ? "–" : short(value)}`);
    label.textContent = words.join(" · ");
    const lines = [`${segunc.filters.statisticWords(current.statistic, current.score)} ${current.score} of every frame`];
    if (page.compared) lines.push("orange: the other model");
    lines.push("▾ peaks");
    if (table.everHas("label/anomaly")) lines.push("blue below: labelled anomaly");
    legend.textContent = lines.join(" · ");
    canvas.setAttribute("aria-valuenow", index + 1);
    canvas.setAttribute("aria-valuemax", table.count);
    canvas.setAttribute("aria-valuetext", words.join(", "));
  }

  function go(index) {
    const target = Math.min(table.count - 1, Math.max(0, index));
    segunc.frame.go(target);
  }

  function scrub(event) {
    const box = canvas.getBoundingClientRect();
    go(Math.round((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT) * (table.count - 1)));
  }

  function jump(direction) {
    const index = at();
    const target = direction > 0 ? peaks.find((peak) => peak > index) : peaks.findLast((peak) => peak < index);
    if (target === undefined) segunc.announce("no further peak");
    else go(target);
  }

  const playing = () => timer !== null;

  /* Frame after frame, no faster than the source; a frame that takes longer is waited for, none is left out. */
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

  /* Frames are due at their times, and one that is late does not delay the next beyond its own; what comes is decoded meanwhile. */
  function tick() {
    const index = at(), [from, to] = [table.time(index), table.time(index + 1)];
    const pause = (from === null || to === null || to < from ? 200 : Math.min(1000, 1000 * (to - from))) / Number(speed.value);
    due = Math.max(due + pause, performance.now());
    for (let ahead = index + 1; ahead <= Math.min(index + AHEAD, table.count - 1); ahead++) segunc.stage.prepare(ahead);
    timer = setTimeout(async () => {
      if (at() >= table.count - 1) return stop();
      segunc.frame.go(at() + 1);
      await segunc.frame.ready();
      if (playing()) tick();
    }, due - performance.now());
  }

  function faster(by) {
    const now = SPEEDS.indexOf(Number(speed.value));
    speed.value = SPEEDS[Math.min(SPEEDS.length - 1, Math.max(0, now + by))];
    segunc.announce(`speed ${speed.value} ×`, true);
  }

  function onKey(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -25, PageDown: 25, Home: -table.count, End: table.count }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    go(at() + step);
  }

  function start() {
    if (!table.scores.length || table.count < 2) {
      footer.hidden = true;
      return;
    }
    const peak = (words, by) => element("button", { type: "button", title: words, "aria-label": words, onclick: () => jump(by) }, by < 0 ? "⇤ Peak" : "Peak ⇥");
    footer.append(element("div", { class: "timeline-tools" }, play, speed, peak("Previous peak ([)", -1), peak("Next peak (])", 1), label, legend), element("div", { class: "chart" }, canvas, cursor));
    speed.addEventListener("change", () => faster(0));
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      scrub(event);
      canvas.addEventListener("pointermove", scrub);
      canvas.addEventListener("pointerup", () => canvas.removeEventListener("pointermove", scrub), { once: true });
    });
    canvas.addEventListener("keydown", onKey);
    new ResizeObserver(draw).observe(canvas);
    verdicts.onChange(() => {
      drawn = "";
      draw();
    });
  }

  function update(current, changed) {
    if (changed.has("view")) {
      if (current.view !== "frame" && playing()) stop();
    }
    if (["frame", "score", "statistic", "model", "threshold", "view"].some((field) => changed.has(field))) draw();
  }

  segunc.timeline = { start, update, draw, jump, go, faster, togglePlay, playing, peaks: () => peaks };
})(segunc);
