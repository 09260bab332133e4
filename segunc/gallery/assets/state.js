"use strict";
/* What is being looked at, in the fragment of the address: a link leads to the same view. */
(function (segunc) {
  const { table } = segunc;
  const { page } = segunc.data;
  const oneOf =
    (...allowed) =>
    (text) =>
      allowed.includes(text) ? text : undefined;
  const number = (low, high) => (text) => {
    const value = Number(text);
    return text !== "" && Number.isFinite(value) ? Math.min(high, Math.max(low, value)) : undefined;
  };
  const flag = (text) => ({ 1: true, 0: false })[text];
  const any = (text) => text;
  const frame = (text) => (table.index(text) === null ? undefined : text);
  const layer = (text) =>
    /^(image|overlay|prediction|error|label\/(truth|anomaly))$/.test(text) ||
    table.scores.includes(text)
      ? text
      : undefined;
  const score = page.ranking;
  /* The image is seen first, with what is flagged outlined and the score as a thin tint. */
  const firstLayer = score && table.everHas("image") ? "overlay" : (score ?? "prediction");

  /* Name -> default and reader; a reader gives undefined for what this page does not know. */
  const FIELDS = {
    view: ["gallery", oneOf("gallery", "alarms", "frame", "run")],
    frame: [null, frame],
    score: [score, oneOf(...table.scores)],
    statistic: [table.usual(score), oneOf("mean", ...table.scores.flatMap(table.statisticsOf))],
    order: ["highest", oneOf(...Object.keys(table.ORDERS))],
    moments: [table.hasMoments ? "one" : "all", oneOf("one", "all")],
    opened: [null, frame],
    search: ["", any],
    show: ["all", oneOf(...Object.keys(table.SHOW))],
    verdict: ["all", any],
    threshold: [null, number(-Infinity, Infinity)],
    layer: [firstLayer, layer],
    panes: ["1", oneOf("1", "2", "4")],
    second: [null, layer],
    third: [null, layer],
    fourth: [null, layer],
    only: [null, (text) => (/^\d+$/.test(text) ? Number(text) : undefined)],
    opacity: [0.75, number(0, 1)],
    flags: [table.recordedThreshold(score) !== null, flag],
    outline: [null, flag], // null: from the reviewer's verdict on
    region: [null, (text) => (/^\d+$/.test(text) ? Number(text) : undefined)],
    zoom: [1, number(1, 64)],
    x: [0.5, number(0, 1)],
    y: [0.5, number(0, 1)],
    probe: [null, (text) => (/^\d+,\d+$/.test(text) ? text : undefined)],
    marking: [false, () => undefined], // what the next drag does is not in the address
  };
  const defaults = Object.fromEntries(
    Object.entries(FIELDS).map(([name, [value]]) => [name, value]),
  );
  const listeners = [];
  let current = { ...defaults };
  let timer = null;
  let unknown = [];

  /* Read the fields of an address into a state; what the page does not hold becomes `unknown`. */
  function readFields(words, state) {
    unknown = [];
    for (const [name, text] of words) {
      const value = Object.hasOwn(FIELDS, name) ? FIELDS[name][1](text) : undefined;
      if (value !== undefined) state[name] = value;
      else if (name !== "marking") unknown.push(`${name} ${text}`.trim().slice(0, 80));
    }
  }

  function parse(fragment) {
    const state = { ...defaults };
    const words = new URLSearchParams(fragment.replace(/^#/, ""));
    readFields(words, state);
    if (state.score && !words.has("statistic")) state.statistic = table.usual(state.score);
    if (state.flags && state.score && table.thresholdOf(state) === null) {
      state.threshold = table.usualThreshold(state.score);
    }
    if (state.view === "frame" && words.has("frame") && state.frame === null) {
      state.view = "gallery";
    }
    return state;
  }

  function fragmentOf(state) {
    const words = new URLSearchParams();
    for (const name of Object.keys(FIELDS)) {
      const value = state[name];
      if (value === defaults[name] || value === null || name === "marking") continue;
      const rounded =
        typeof value === "number" && name !== "threshold" ? Number(value.toFixed(4)) : value;
      words.set(name, typeof value === "boolean" ? Number(value) : rounded);
    }
    return `#${words}`;
  }

  /* Browsers slow down pages that write their address many times a second, so dragging writes when
     it ends. */
  function write(push) {
    clearTimeout(timer);
    timer = null;
    const fragment = fragmentOf(current);
    if (fragment !== (location.hash || "#")) {
      history[push ? "pushState" : "replaceState"](null, "", fragment);
    }
  }

  function set(changes) {
    const before = current;
    current = { ...current, ...changes };
    const changed = new Set(Object.keys(changes).filter((name) => before[name] !== current[name]));
    if (!changed.size) return;
    if (changed.has("view")) write(true);
    else if (timer === null) timer = setTimeout(() => write(false), 250);
    tell(changed);
  }

  function tell(changed) {
    for (const listener of listeners) listener(current, changed);
  }

  function start() {
    current = parse(location.hash);
    tell(new Set(Object.keys(FIELDS)));
  }

  addEventListener("popstate", start);
  segunc.state = {
    get: () => current,
    set,
    start,
    /* `listener(state, changed)` after every change, `changed` a set of field names. */
    onChange: (listener) => listeners.push(listener),
    /* What the address asks for and the page does not hold, in words. */
    unknown: () => unknown,
    link: () => location.href.replace(/#.*/, "") + fragmentOf(current),
  };
})(segunc);
