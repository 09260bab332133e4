"use strict";
/* The table of frames: what is known of each without its maps; sorted and filtered. */
(function (segunc) {
  const { page, frames } = segunc.data;
  const count = frames.length;
  const scores = Object.keys(page.scores);
  const indices = new Map(frames.map(({ name }, index) => [name, index]));
  const contents = frames.map((frame) => new Set(frame.contents));
  const ever = new Set(frames.flatMap((frame) => frame.contents));

  /* The statistics that any frame has of a score. */
  const statisticsOf = (score) => [
    ...new Set(frames.flatMap(({ statistics }) => Object.keys(statistics[score] ?? {}))),
  ];

  /* A statistic of a frame; null where there is none. */
  const value = (index, score, statistic) => frames[index].statistics[score]?.[statistic] ?? null;

  /* The largest value of a score in any frame; null where no frame has one. */
  function highest(score) {
    const values = frames.map((_, index) => value(index, score, "max"));
    const known = values.filter((number) => number !== null);
    return known.length ? known.reduce((a, b) => Math.max(a, b)) : null;
  }

  /* From which value on the run itself says that a pixel is flagged; null of maps that record
     none. */
  const recordedThreshold = (score) => page.scores[score]?.region_from ?? null;

  /* What was done with the map of a score before it was flagged; empty for nothing. */
  const preparationOf = (score) => page.scores[score]?.preparation ?? "";

  /* The threshold that is set, or else the recorded one. */
  const thresholdOf = ({ score, threshold }) => threshold ?? recordedThreshold(score);

  /* How many labelled objects of a frame are flagged: {flagged, of}; null without one. */
  function flaggedObjects(index, state) {
    const upTo = frames[index].found[state.score] ?? null;
    const threshold = thresholdOf(state);
    if (upTo === null || threshold === null || !revealed(index)) return null;
    return { flagged: upTo.filter((limit) => limit >= threshold).length, of: upTo.length };
  }

  /* "found" or "missed": whether all labelled objects of a frame are flagged; null without one. */
  function outcome(index, state) {
    const objects = flaggedObjects(index, state);
    if (!objects) return null;
    return objects.flagged === objects.of ? "found" : "missed";
  }

  const revealed = (index) => segunc.verdicts.revealed(frames[index].name);

  /* The number that the gallery sorts by. */
  const ranked = (index, state) => value(index, state.score, state.statistic);

  /* Whether a statistic is in the unit of its score; those of regions have units of their own. */
  const inUnit = (statistic) => statistic !== "component" && statistic !== "region";

  /* The statistic that ranks frames by a score: the strongest region where it has one, since a mean
     hides a small object. `now` stays where the score has it. */
  function usual(score, now = "region") {
    const known = score ? statisticsOf(score) : [];
    for (const statistic of [now, "region", "mean"]) {
      if (known.includes(statistic)) return statistic;
    }
    return known[0] ?? "mean";
  }

  /* From which value on pixels belong to regions in the run's own statistics; else the middle of
     the colours. */
  function usualThreshold(score) {
    const { low, high, region_from: from } = page.scores[score];
    return from ?? Number(((low + high) / 2).toPrecision(4));
  }

  /* Whether the frame is at or above the threshold, of regions by its maximum; null where either
     lacks. */
  function reaches(index, state) {
    const statistic = inUnit(state.statistic) ? state.statistic : "max";
    const number = value(index, state.score, statistic);
    const threshold = thresholdOf(state);
    return number === null || threshold === null ? null : number >= threshold;
  }

  const SHOW = {
    all: ["all frames", () => true],
    flagged: ["at or above the threshold", (i, s) => reaches(i, s) === true],
    below: ["below the threshold", (i, s) => reaches(i, s) === false],
    missed: ["a labelled object is not flagged", (i, s) => outcome(i, s) === "missed"],
    found: ["all labelled objects are flagged", (i, s) => outcome(i, s) === "found"],
    normal: ["label without an anomaly", (i) => revealed(i) && frames[i].objects === 0],
    unlabelled: ["no anomaly label", (i) => revealed(i) && frames[i].objects === null],
    problems: ["something could not be shown", (i) => frames[i].problems.length > 0],
  };
  const ORDERS = { highest: "highest first", lowest: "lowest first", source: "source order" };

  /* Indices of the frames to show, in order. Frames without the statistic come last. */
  function select(state, verdicts) {
    const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = SHOW[state.show][1];
    const chosen = [...frames.keys()].filter((index) => {
      const { name } = frames[index];
      const lowered = name.toLowerCase();
      return (
        words.every((word) => lowered.includes(word)) &&
        shown(index, state) &&
        (state.verdict === "all" || verdictMatches(name, verdicts, state.verdict))
      );
    });
    if (state.order === "source") return chosen;
    const sign = state.order === "highest" ? -1 : 1;
    // Frames without a region are told apart by their highest values.
    const keys = (statistic) =>
      new Map(
        chosen.map((index) => [
          index,
          sign * (value(index, state.score, statistic) ?? sign * Infinity),
        ]),
      );
    const first = keys(state.statistic);
    const second = keys("max");
    const compare = (keysOf, a, b) => {
      if (keysOf.get(a) === keysOf.get(b)) return 0;
      return keysOf.get(a) < keysOf.get(b) ? -1 : 1;
    };
    return chosen.sort((a, b) => compare(first, a, b) || compare(second, a, b) || a - b);
  }

  const folders = frames.map(({ name }) => name.slice(0, name.lastIndexOf("/") + 1));

  /* Whether two frames are of one moment: by their times. Differences of times fall short of a
     whole period where times are not exact in binary, as in whole_periods of core/periods.py. */
  function near(one, other) {
    const [a, b] = [frames[one].time, frames[other].time];
    const apart = page.apart - Math.min(0.001, page.apart / 100);
    return a !== null && b !== null && folders[one] === folders[other] && Math.abs(a - b) < apart;
  }

  /* The first of each moment in an order, and how many frames of it follow; those of the frame
     `opened` behind it. */
  function moments(order, opened) {
    const members = new Map();
    const heads = [];
    for (const index of order) {
      const head = heads.find((other) => near(index, other));
      if (head !== undefined) members.get(head).push(index);
      else {
        members.set(index, []);
        heads.push(index);
      }
    }
    return [
      [...members].flatMap(([head, rest]) => [head, ...(head === opened ? rest : [])]),
      members,
    ];
  }

  function verdictMatches(name, verdicts, wanted) {
    if (wanted === "disagree") return verdicts.disagree(name);
    const entry = verdicts.usual(name);
    if (wanted === "none") return !entry?.verdict;
    return wanted === "note" ? Boolean(entry?.note) : entry?.verdict === wanted;
  }

  segunc.table = {
    count,
    scores,
    SHOW,
    ORDERS,
    value,
    highest,
    ranked,
    recordedThreshold,
    preparationOf,
    thresholdOf,
    flaggedObjects,
    outcome,
    inUnit,
    usual,
    usualThreshold,
    select,
    moments,
    statisticsOf,
    has: (index, content) =>
      contents[index].has(content) && (!content.startsWith("label/") || revealed(index)),
    name: (index) => frames[index].name,
    /* The file of a frame below its source, with its ending; the name where it is no file. */
    file: (name) => frames[indices.get(name)]?.file ?? name,
    /* The hash of the image that the maps of a frame are of; null where it is not known. */
    imageHash: (name) => frames[indices.get(name)]?.image_hash ?? null,
    /* The file of the thumbnail of an image or a score, with the hash of its bytes. */
    thumbnail: (index, content) => `${content}-${frames[index].thumbnails[content]}.jpg`,
    place: (index) => frames[index].place,
    folder: (index) => String(frames[index].place).padStart(6, "0"),
    size: (index) => frames[index].size,
    time: (index) => frames[index]?.time ?? null,
    /* Peak and area of the strongest region at the recorded threshold; null without one. */
    strongest: (index, score) => frames[index].strongest[score] ?? null,
    objects: (index) => (revealed(index) ? frames[index].objects : null),
    /* Whether the labelled objects of a frame are specks, which count for want of a larger one. */
    specks: (index) => frames[index].specks,
    problems: (index) => frames[index].problems,
    index: (name) => indices.get(name) ?? null,
    hasMoments: frames.some(({ time }) => time !== null),
    everHas: (content) => ever.has(content),
  };
})(segunc);
