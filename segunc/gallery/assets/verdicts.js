"use strict";
/* What reviewers decided on frames and on regions of them: kept in this browser under the run's id,
   over what was imported. */
(function (segunc) {
  const { page, verdicts: imported } = segunc.data;
  const KEY = `segunc-review:${page.run}`,
    NAME_KEY = "segunc-review-name";
  const WORDS = {
    "nothing-wrong": "nothing wrong",
    "true-alarm": "true alarm",
    "false-alarm": "false alarm",
    missed: "missed",
    unsure: "unsure",
  };
  const REGION_WORDS = {
    "true-alarm": "true",
    "false-alarm": "false",
    missed: "part of a missed object",
    unsure: "unsure",
  };
  /* What the verdicts on regions say of their frame where it has none of its own, the gravest
     first. */
  const GRAVEST = ["missed", "true-alarm", "false-alarm", "unsure"];
  const listeners = [];
  const entries = new Map(); // key -> {frame, region, reviewer, verdict, note, time}
  const done = [],
    undone = []; // changes of this visit: [key, before, after]
  let storable = true,
    name = null;

  /* A region is known by its score (none where it was drawn by hand) and its box. */
  const regionKey = (region) => (region ? `${region.score ?? ""}:${region.box.join(",")}` : "");
  const keyOf = (entry) => JSON.stringify([entry.frame, regionKey(entry.region), entry.reviewer]);

  /* Add entries; of two by one reviewer on one thing the later stays. Gives how many were taken. */
  function merge(list) {
    let taken = 0;
    for (const { frame, verdict, note, time, region = null, reviewer = "" } of list) {
      const entry = { frame, region, reviewer, verdict, note, time },
        key = keyOf(entry),
        old = entries.get(key);
      if (!old || old.time < time) {
        entries.set(key, entry);
        taken++;
      }
    }
    return taken;
  }

  function stored(key) {
    try {
      return localStorage.getItem(key);
    } catch {
      storable = false;
      return null;
    }
  }

  function save() {
    try {
      localStorage.setItem(KEY, JSON.stringify(all(true)));
      storable = true;
    } catch {
      storable = false;
    }
    for (const listener of listeners) listener();
  }

  const written = (entry) => Boolean(entry.verdict || entry.note);

  /* All entries in the order of the frames, frames before their regions; with those that were taken
     back, whose time still counts. */
  function all(withEmpty = false) {
    const place = (entry) => segunc.table.index(entry.frame) ?? Infinity;
    const rows = [...entries.values()].sort(
      (a, b) => place(a) - place(b) || Number(Boolean(a.region)) - Number(Boolean(b.region)),
    );
    return withEmpty ? rows : rows.filter(written);
  }

  /* Change the verdict or the note on a frame, or on a region of it, in the name of the reviewer. */
  function set(frame, changes, region = null) {
    const blank = { frame, region, reviewer: name ?? "", verdict: "", note: "", time: "" };
    const key = keyOf(blank),
      before = entries.get(key) ?? blank,
      after = { ...before, ...changes };
    if (after.verdict === before.verdict && after.note === before.note) return;
    put(key, after);
    const last = done.at(-1);
    // One note is one change, however many letters it has.
    if (last?.[0] === key && last[2].verdict === after.verdict && before.note && !undone.length)
      last[2] = after;
    else done.push([key, before, after]);
    undone.length = 0;
  }

  function put(key, entry) {
    entries.set(key, { ...entry, time: new Date().toISOString() });
    save();
  }

  /* Take the last change back (or `again`); gives the frame it was on and a line that says what was
     done, or null. */
  function undo(again = false) {
    const change = (again ? undone : done).pop();
    if (!change) return null;
    const [key, before, after] = change,
      entry = again ? after : before;
    (again ? done : undone).push(change);
    put(key, entry);
    const what =
      after.verdict !== before.verdict
        ? WORDS[after.verdict] || `no longer ${WORDS[before.verdict]}`
        : "the note";
    return {
      frame: entry.frame,
      words: `${again ? "Done again" : "Undone"}: ${what} on ${entry.region ? "a region of " : ""}${entry.frame}`,
    };
  }

  const on = (frame) => byFrame().get(frame) ?? [];
  let index = null,
    others = new Set(); // frame -> its entries, until the next change; the other reviewers
  function byFrame() {
    if (index) return index;
    index = new Map();
    others = new Set(all().map(({ reviewer }) => reviewer));
    others.delete(name ?? "");
    for (const entry of all()) index.set(entry.frame, [...(index.get(entry.frame) ?? []), entry]);
    return index;
  }

  /* Whether labels and the verdicts of others are hidden until one has judged: where it was asked
     for, else from who has a name where one other has judged, whom a second reviewer must not
     follow. With two or more, differences are settled, and all is seen. */
  const second = () => page.blind === null && byFrame() && others.size === 1;
  const blind = () => page.blind ?? (second() && name !== null);

  /* Whether a frame's labels and the verdicts of others may be seen. A verdict on a region of it is
     no verdict on the frame. */
  const revealed = (frame) =>
    !blind() ||
    on(frame).some(
      ({ reviewer, region, verdict }) => reviewer === (name ?? "") && !region && verdict,
    );

  /* The verdict of each reviewer on a frame: {reviewer, verdict, note, derived}, derived where only
     its regions have verdicts. */
  function opinions(frame) {
    const found = new Map(),
      seen = revealed(frame);
    for (const { reviewer, region, verdict, note, time } of on(frame)) {
      if (!seen && reviewer !== (name ?? "")) continue;
      const one = found.get(reviewer) ?? {
        reviewer,
        verdict: "",
        note: "",
        time: "",
        derived: false,
        regions: [],
      };
      found.set(reviewer, one);
      if (region) one.regions.push(verdict);
      else Object.assign(one, { verdict, note });
      if (time > one.time) one.time = time;
    }
    for (const one of found.values()) {
      if (one.verdict) continue;
      one.verdict = GRAVEST.find((verdict) => one.regions.includes(verdict)) ?? "";
      one.derived = Boolean(one.verdict);
    }
    return [...found.values()].filter((one) => one.verdict || one.note);
  }

  /* The reviewer's own; that of anybody, the latest, while nobody has given a name. */
  function get(frame) {
    const known = opinions(frame);
    if (name !== null) return known.find(({ reviewer }) => reviewer === name) ?? null;
    return known.reduce((a, b) => (a && a.time >= b.time ? a : b), null);
  }

  const disagree = (frame) =>
    new Set(
      opinions(frame)
        .map(({ verdict }) => verdict)
        .filter(Boolean),
    ).size > 1;

  function setName(text) {
    name = text.trim();
    try {
      localStorage.setItem(NAME_KEY, name);
    } catch {
      /* the name lasts as long as the page */
    }
    for (const listener of listeners) listener();
  }

  merge(imported.verdicts);
  name = stored(NAME_KEY);
  const earlier = () => {
    try {
      return JSON.parse(stored(KEY) ?? "[]");
    } catch {
      return []; // somebody else's text under our key
    }
  };
  merge(earlier());
  listeners.push(() => {
    index = null;
  });
  // Another tab with the same run may write too.
  addEventListener("storage", (event) => {
    if (event.key === KEY && merge(earlier())) for (const listener of listeners) listener();
  });

  segunc.verdicts = {
    blind,
    revealed,
    WORDS,
    /* Whether who gives a name will be blind. */
    blindOnceNamed: () => second() && name === null,
    REGION_WORDS,
    all,
    set,
    get,
    opinions,
    disagree,
    undo,
    setName,
    /* What the reviewer said of regions of a frame. */
    regions: (frame) =>
      on(frame).filter(({ region, reviewer }) => region && reviewer === (name ?? "")),
    reviewer: () => name,
    add(list) {
      const taken = merge(list);
      if (taken) save();
      return taken;
    },
    /* Whether the browser keeps them; where it does not, only an export does. */
    kept: () => storable,
    onChange: (listener) => listeners.push(listener),
  };
})(segunc);
