"use strict";
/* What the reviewer decided on each frame: kept in this browser under the run's id, over what was imported. */
(function (segunc) {
  const { page, verdicts: imported } = segunc.data;
  const KEY = `segunc-review:${page.run}`;
  const WORDS = { "true-alarm": "true alarm", "false-alarm": "false alarm", missed: "missed", unsure: "unsure" };
  const listeners = [];
  const entries = new Map();
  let storable = true;

  /* Add entries {frame, verdict, note, time}; of two on a frame the later stays. Gives how many were taken. */
  function merge(list) {
    let taken = 0;
    for (const { frame, verdict, note, time } of list) {
      const old = entries.get(frame);
      if (!old || old.time < time) {
        entries.set(frame, { verdict, note, time });
        taken++;
      }
    }
    return taken;
  }

  function stored() {
    try {
      const text = localStorage.getItem(KEY);
      return text ? JSON.parse(text) : [];
    } catch {
      storable = false;
      return [];
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

  /* All entries in the order of the frames; with those that were taken back, whose time still counts. */
  function all(withEmpty = false) {
    const rows = [...entries].map(([frame, entry]) => ({ frame, ...entry }));
    rows.sort((a, b) => (segunc.table.index(a.frame) ?? Infinity) - (segunc.table.index(b.frame) ?? Infinity));
    return withEmpty ? rows : rows.filter(written);
  }

  function set(frame, changes) {
    const old = entries.get(frame) ?? { verdict: "", note: "" };
    const entry = { ...old, ...changes };
    if (entry.verdict === old.verdict && entry.note === old.note) return;
    entries.set(frame, { ...entry, time: new Date().toISOString() });
    save();
  }

  merge(imported.verdicts);
  merge(stored());
  // Another tab with the same run may write too.
  addEventListener("storage", (event) => {
    if (event.key === KEY && merge(stored())) for (const listener of listeners) listener();
  });

  segunc.verdicts = {
    WORDS, all, set,
    get: (frame) => entries.get(frame) ?? null,
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
