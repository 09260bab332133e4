"use strict";
/* The table of frames: what is known of each without its maps; sorted and filtered. */
(function (segunc) {
  const { page, frames } = segunc.data;
  const count = frames.names.length;
  const scores = Object.keys(page.scores);
  const indices = new Map(frames.names.map((name, index) => [name, index]));
  const lowered = frames.names.map((name) => name.toLowerCase());
  const contents = frames.kinds.map((kind) => new Set(kind));
  const MODELS = page.compared ? ["first", "second", "difference"] : ["first"];

  const has = (index, content) => contents[frames.kind[index]].has(content);
  const labelled = (index) => frames.objects[index] !== null;

  function statisticsOf(score) {
    return Object.keys(frames.statistics[score] ?? {});
  }

  /* A statistic of a frame; null where there is none. `difference` is model 2 less model 1. */
  function value(index, score, statistic, model = "first") {
    const first = frames.statistics[score]?.[statistic]?.[index] ?? null;
    if (model === "first") return first;
    const second = frames.other[score]?.[statistic]?.[index] ?? null;
    if (model === "second") return second;
    return first === null || second === null ? null : second - first;
  }

  /* "found" or "missed": whether all labelled objects of a frame reach the threshold; null without an object. */
  function outcome(index, score, threshold) {
    const upTo = frames.found[score]?.[index] ?? null;
    return upTo === null || threshold === null ? null : upTo >= threshold ? "found" : "missed";
  }

  /* The number that the gallery sorts by. */
  const ranked = (index, state) => value(index, state.score, state.statistic, state.model);

  /* Whether a statistic is in the unit of its score; the largest component is a number of pixels. */
  const inUnit = (statistic) => statistic !== "component";

  /* Whether that number is at or above the threshold; null where either lacks. */
  function reaches(index, state) {
    const known = ranked(index, state);
    return known === null || state.threshold === null || !inUnit(state.statistic) ? null : known >= state.threshold;
  }

  const SHOW = {
    all: ["all frames", () => true],
    flagged: ["statistic at or above the threshold", (i, s) => reaches(i, s) === true],
    below: ["statistic below the threshold", (i, s) => reaches(i, s) === false],
    missed: ["labelled anomaly missed at the threshold", (i, s) => outcome(i, s.score, s.threshold) === "missed"],
    found: ["labelled anomaly found at the threshold", (i, s) => outcome(i, s.score, s.threshold) === "found"],
    normal: ["label without an anomaly", (i) => frames.objects[i] === 0],
    unlabelled: ["no anomaly label", (i) => !labelled(i)],
    problems: ["something could not be shown", (i) => String(i) in frames.problems],
  };
  const ORDERS = { highest: "highest first", lowest: "lowest first", source: "source order" };

  /* The frames to show, in order: indices into the table. Frames without the statistic come last. */
  function select(state, verdicts) {
    const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = SHOW[state.show][1];
    const chosen = [];
    for (let index = 0; index < count; index++) {
      if (!words.every((word) => lowered[index].includes(word)) || !shown(index, state)) continue;
      if (state.verdict !== "all" && !verdictMatches(frames.names[index], verdicts, state.verdict)) continue;
      chosen.push(index);
    }
    if (state.order === "source") return chosen;
    const sign = state.order === "highest" ? -1 : 1;
    const keys = new Float64Array(count);
    for (const index of chosen) {
      const known = ranked(index, state);
      keys[index] = known === null ? Infinity : sign * known;
    }
    return chosen.sort((a, b) => (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b));
  }

  const folders = frames.names.map((name) => name.slice(0, name.lastIndexOf("/") + 1));

  /* Whether two frames are of one moment: by their times. */
  function near(one, other) {
    const [a, b] = [frames.times?.[one] ?? null, frames.times?.[other] ?? null];
    return a !== null && b !== null && folders[one] === folders[other] && Math.abs(a - b) < page.apart;
  }

  /* The first of each moment in an order, and how many frames of it follow; those of the frame `opened` behind it. */
  function moments(order, opened) {
    const members = new Map();
    for (const index of order) {
      let head = null;
      for (const other of members.keys()) {
        if (near(index, other)) {
          head = other;
          break;
        }
      }
      if (head === null) members.set(index, []);
      else members.get(head).push(index);
    }
    const shown = [];
    for (const [head, rest] of members) shown.push(head, ...(head === opened ? rest : []));
    return [shown, members];
  }

  function verdictMatches(name, verdicts, wanted) {
    if (wanted === "disagree") return verdicts.disagree(name);
    const entry = verdicts.get(name);
    if (wanted === "none") return !entry?.verdict;
    return wanted === "note" ? Boolean(entry?.note) : entry?.verdict === wanted;
  }

  /* Smallest and largest of a statistic over all frames; the score's range where there is none. */
  function extent(score, statistic) {
    const column = (frames.statistics[score]?.[statistic] ?? []).filter((v) => v !== null);
    if (!column.length) return [page.scores[score].low, page.scores[score].high];
    return [column.reduce((a, b) => Math.min(a, b)), column.reduce((a, b) => Math.max(a, b))];
  }

  segunc.table = {
    count, scores, MODELS, SHOW, ORDERS, has, value, ranked, outcome, inUnit, select, moments, extent, statisticsOf,
    name: (index) => frames.names[index],
    place: (index) => frames.places[index],
    folder: (index) => String(frames.places[index]).padStart(6, "0"),
    size: (index) => frames.sizes[index],
    time: (index) => frames.times?.[index] ?? null,
    objects: (index) => frames.objects[index],
    problems: (index) => frames.problems[index] ?? [],
    index: (name) => indices.get(name) ?? null,
    hasMoments: Boolean(frames.times),
    everHas: (content) => frames.kinds.some((kind) => kind.includes(content)),
  };
})(segunc);
