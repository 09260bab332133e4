"use strict";
/* What reviewers decided on frames and on regions of them: kept in this browser under the run's
   id, over what was imported. */
(function (segunc) {
  const { page, verdicts: imported } = segunc.data;
  const { state, table, overlap } = segunc;
  const PREFIX = "segunc-review:";
  const KEY = PREFIX + page.run;
  /* Title and address of the page on which the verdicts on a run were given. */
  const ORIGIN_PREFIX = "segunc-review-origin:";
  const NAME_KEY = "segunc-review-name";
  const DAMAGED_KEY = `${KEY}:damaged`;
  const DAY = 86_400_000; // milliseconds by which clocks of two machines may differ
  /* Of a frame and, in the words of a list, of a region; the kinds are those that `review --import`
     reads (maps/verdicts.py). */
  const WORDS = page.verdicts.frame;
  const REGION_WORDS = page.verdicts.region;
  /* What the verdicts on regions say of their frame where it has none of its own. */
  const GRAVEST = page.verdicts.gravest;
  /* A verdict on a region in words. What is drawn by hand is a missed object, or the rest of one;
     what is flagged and missed is a part of an object. */
  const regionWords = (region, verdict) =>
    verdict === "missed" && region.score === null ? "missed object" : REGION_WORDS[verdict];
  const listeners = [];
  // key -> {frame, region, reviewer, verdict, note, time, score, threshold, preparation,
  // image_hash}; score, threshold and preparation are those that were set when a frame was judged
  const entries = new Map();
  // Changes of this visit, each a list of steps [key, before, after], of which the last is told.
  const done = [];
  const undone = [];
  let storable = true;
  let name = null;
  let leftOut = 0; // entries of this browser that no verdict can be read from
  // Its entries on frames that this page does not have, though it has all frames of its maps, and
  // on other images than its frames have: a page that is older or newer than this one has them.
  let elsewhere = [];

  /* A region is known by its score (none where it was drawn by hand) and its box. */
  const regionKey = (region) => (region ? `${region.score ?? ""}:${region.box.join(",")}` : "");
  const keyOf = (entry) => JSON.stringify([entry.frame, regionKey(entry.region), entry.reviewer]);

  const isText = (value) => typeof value === "string";
  const isCount = (value) => Number.isSafeInteger(value) && value >= 0;
  const isCounts = (list, length = list?.length) =>
    Array.isArray(list) && list.length === length && list.every(isCount);
  const isNumberOrNull = (value) => value === null || Number.isFinite(value);
  /* Half of a pair of UTF-16 codes is no text in a file. */
  const wellFormed = (text) => text.replace(/\p{Surrogate}/gu, "\ufffd");

  /* Whether runs [start, length, start, length, ...] follow each other within so many pixels. */
  function areRuns(mask, pixels) {
    if (!isCounts(mask) || mask.length % 2) return false;
    let end = 0;
    for (let i = 0; i < mask.length; i += 2) {
      if (mask[i] < end) return false;
      end = mask[i] + mask[i + 1];
    }
    return end <= pixels;
  }

  /* Whether a size is that of a frame; of a frame that is not on this page any size may be. */
  function isSizeOf(frame, size) {
    const index = table.index(frame);
    const expected = index === null ? null : table.size(index);
    return !expected || (expected[0] === size[0] && expected[1] === size[1]);
  }

  /* Whether box, area and mask of a region are counts that fit its size, and that its frame. */
  function isPlace({ box, area, size, mask }, frame) {
    if (!isCounts(box, 4) || !isCounts(size, 2) || !isCount(area)) return false;
    const [left, top, width, height] = box;
    const [rows, columns] = size;
    const fits = left + width <= columns && top + height <= rows && area <= rows * columns;
    return fits && isSizeOf(frame, size) && areRuns(mask, rows * columns);
  }

  /* A region as `review --import` reads it, within its frame; undefined for anything else. */
  function cleanRegion(raw, frame) {
    if (raw === null || raw === undefined) return null;
    if (!isPlace(raw, frame)) return undefined;
    const { box, area, size, mask, value = null } = raw;
    const setting = cleanSetting(raw);
    if (setting === null || !isNumberOrNull(value)) return undefined;
    return { box, area, size, mask, ...setting, value };
  }

  /* A time of the form that this page writes; "", which every other time is later than, for any
     other text and for the future, which no correction could follow. */
  function cleanTime(text) {
    const written = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/.test(text);
    return written && Date.parse(text) <= Date.now() + DAY ? text : "";
  }

  const isTextOrNull = (value) => value === null || isText(value);

  /* The score, the threshold and the preparation that a frame or a region was judged at, which
     earlier versions did not write; null for anything else. */
  function cleanSetting({ score = null, threshold = null, preparation = null }) {
    if (!isTextOrNull(score) || !isTextOrNull(preparation)) return null;
    if (!isNumberOrNull(threshold)) return null;
    return {
      score: score && wellFormed(score),
      threshold,
      preparation: preparation && wellFormed(preparation),
    };
  }

  /* Whether an entry may be on the image that its frame has here. Earlier versions did not write
     the hash of the image; frames of a video, and maps of another tool, have none. */
  function isOnImage({ frame, image_hash: judged }) {
    const shown = table.imageHash(frame);
    return judged === null || shown === null || judged === shown;
  }

  /* Whether an entry of an earlier version does not say on which image it was given. */
  const namesNoImage = ({ frame, verdict, image_hash: judged }) =>
    verdict && judged === null && table.imageHash(frame) !== null;

  /* Whether a frame may be judged here. A page of some of the frames keeps what was said of the
     others. */
  const isFrameHere = ({ frame }) => table.index(frame) !== null || table.count !== page.total;

  /* Whether an entry counts here. */
  const isHere = (entry) => isFrameHere(entry) && isOnImage(entry);

  /* An entry out of a file on a frame of this page, which may be on another image of it; null where
     it is none. */
  function clean(raw) {
    const entry = cleanEntry(raw);
    return entry && isFrameHere(entry) ? entry : null;
  }

  /* The texts of an entry, and the hash of its image; null where one is no text. */
  function cleanTexts(raw) {
    const { frame, verdict, note, time, image_hash = null } = raw;
    const reviewer = raw.reviewer ?? "";
    if (![frame, verdict, note, time, reviewer].every(isText)) return null;
    if (!isTextOrNull(image_hash)) return null;
    return {
      frame,
      reviewer: wellFormed(reviewer),
      verdict,
      note: wellFormed(note),
      time: cleanTime(time),
      image_hash: image_hash && wellFormed(image_hash),
    };
  }

  /* An entry out of a file or of this browser's storage with its fields as `review --import` reads
     them; null where it is none. */
  function cleanEntry(raw) {
    if (raw === null || typeof raw !== "object") return null;
    const texts = cleanTexts(raw);
    const setting = cleanSetting(raw);
    if (texts === null || setting === null) return null;
    const { frame, image_hash, ...said } = texts;
    // Another image may have another size.
    const region = cleanRegion(raw.region, isOnImage(texts) ? frame : null);
    if (region === undefined) return null;
    if (said.verdict && !Object.hasOwn(region ? REGION_WORDS : WORDS, said.verdict)) return null;
    return { frame, region, ...said, ...setting, image_hash };
  }

  /* Add clean entries; of two by one reviewer on one thing the later stays. Gives how many were
     taken. */
  function merge(list) {
    let taken = 0;
    for (const entry of list) {
      const key = keyOf(entry);
      const old = entries.get(key);
      if (!old || old.time < entry.time) {
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

  function store(key, text) {
    try {
      localStorage.setItem(key, text);
      return true;
    } catch {
      return false;
    }
  }

  function save() {
    storable = store(KEY, JSON.stringify([...all(true), ...elsewhere]));
    storeOrigin();
    tell();
  }

  const origin = () => ({ title: page.title, address: location.pathname });

  function storeOrigin() {
    store(ORIGIN_PREFIX + page.run, JSON.stringify(origin()));
  }

  /* The JSON under a key; null where there is none. */
  function storedJson(key) {
    try {
      return JSON.parse(stored(key));
    } catch {
      return null;
    }
  }

  /* Other runs on which this browser keeps verdicts from a page of this title or of this address:
     [run, how many verdicts on frames that this page has, too]. Without a verdict on this run, this
     is why. */
  function otherRuns() {
    const here = origin();
    const found = [];
    for (const key of storedKeys()) {
      const run = key.slice(PREFIX.length);
      if (!key.startsWith(PREFIX) || !/^[0-9a-f]{16}$/.test(run) || run === page.run) continue;
      const there = storedJson(ORIGIN_PREFIX + run);
      if (there?.title !== here.title && there?.address !== here.address) continue;
      const list = storedJson(key);
      const counts = (entry) => entry?.verdict && table.index(entry.frame) !== null;
      const count = Array.isArray(list) ? list.filter(counts).length : 0;
      if (count) found.push([run, count]);
    }
    return found;
  }

  function storedKeys() {
    try {
      return Object.keys(localStorage);
    } catch {
      return [];
    }
  }

  /* How many verdicts were given at which threshold of a score that is not the recorded one of this
     page: [score, threshold, how many], most verdicts first. */
  function otherThresholds() {
    const counts = new Map();
    for (const { region, verdict, ...whole } of all()) {
      const { score, threshold, preparation } = region ?? whole;
      if (!verdict || !score || threshold === null) continue;
      const recorded = table.recordedThreshold(score);
      const isFree = recorded === null && table.scores.includes(score);
      const preparedHere = table.preparationOf(score);
      const prepared = preparation ?? preparedHere; // earlier versions did not write it
      if (isFree || (threshold === recorded && prepared === preparedHere)) continue;
      const key = JSON.stringify([score, threshold, prepared]);
      counts.set(key, (counts.get(key) ?? 0) + 1);
    }
    return [...counts]
      .sort((a, b) => b[1] - a[1])
      .map(([key, count]) => [...JSON.parse(key), count]);
  }

  function tell() {
    for (const listener of listeners) listener();
  }

  const written = (entry) => Boolean(entry.verdict || entry.note);

  /* All entries in the order of the frames, frames before their regions; with those that were taken
     back, whose time still counts. */
  function all(withEmpty = false) {
    const place = (entry) => table.index(entry.frame) ?? Infinity;
    const rows = [...entries.values()].sort(
      (a, b) => place(a) - place(b) || Number(Boolean(a.region)) - Number(Boolean(b.region)),
    );
    return withEmpty ? rows : rows.filter(written);
  }

  /* The score, its threshold and its preparation that a frame is judged at; a region has its
     own. */
  function thresholdNow() {
    const { score, threshold: typed } = state.get();
    const threshold = score === null ? null : table.thresholdOf({ score, threshold: typed });
    if (threshold === null) return NO_THRESHOLD;
    return { score, threshold, preparation: table.preparationOf(score) };
  }

  const NO_THRESHOLD = { score: null, threshold: null, preparation: null };
  const CHANGING = ["verdict", "note", "score", "threshold", "preparation", "image_hash"];

  /* Whether two entries are on regions of one outline, or on none. A page of an earlier version
     gave a region of the same area other pixels. */
  function isOneOutline({ region: one }, { region: other }) {
    if (!one || !other) return one === other;
    if (one.area !== other.area || one.mask.length !== other.mask.length) return false;
    return one.mask.every((count, i) => count === other.mask[i]);
  }

  /* Change the verdict or the note on a frame, or on a region of it, in the reviewer's name. A
     verdict that is given again counts for the threshold that is set, and for the outline and the
     image that are seen now. `earlier` is the region, of another outline, that had the verdict
     until now. */
  function set(frame, changes, region = null, earlier = null) {
    const blank = {
      frame,
      region,
      reviewer: name ?? "",
      verdict: "",
      note: "",
      time: "",
      ...NO_THRESHOLD,
      image_hash: table.imageHash(frame),
    };
    const key = keyOf(blank);
    const before = entries.get(key) ?? blank;
    const after = withChanges(before, changes, region);
    const steps = after.verdict && earlier ? leave({ ...blank, region: earlier }, key) : [];
    for (const [, left] of steps) after.note ||= left.note;
    if (!steps.length && isUnchanged(before, after)) return;
    steps.push([key, before, after]);
    remember(steps);
    for (const [stepKey, , entry] of steps) put(stepKey, entry);
  }

  /* An entry with changes; a new verdict brings the threshold or the region that it is for. */
  function withChanges(before, changes, region) {
    const after = { ...before, ...changes };
    after.note = wellFormed(after.note);
    if (!Object.hasOwn(changes, "verdict")) return after;
    if (after.verdict) after.image_hash = table.imageHash(after.frame);
    if (!region) Object.assign(after, after.verdict ? thresholdNow() : NO_THRESHOLD);
    else if (after.verdict) after.region = region;
    return after;
  }

  /* The step that empties an entry whose verdict goes to another key; none where nothing is written
     there. */
  function leave(blank, key) {
    const left = entries.get(keyOf(blank));
    if (!left || !written(left) || keyOf(left) === key) return [];
    return [[keyOf(left), left, { ...left, verdict: "", note: "" }]];
  }

  const isUnchanged = (before, after) =>
    isOneOutline(before, after) && CHANGING.every((field) => after[field] === before[field]);

  /* Note a change, so that it can be undone. One note is one change, however many letters it has,
     unless another tab or a file has changed it in between. */
  function remember(steps) {
    const [key, before, after] = steps.at(-1);
    const last = done.at(-1)?.at(-1);
    const isNote = before.note && before.note !== after.note;
    const wasNote = last && last[1].note !== last[2].note && last[1].verdict === last[2].verdict;
    const goesOn = wasNote && isNote && last[0] === key && isUnchanged(last[2], before);
    if (goesOn && last[2].verdict === after.verdict && !undone.length) last[2] = after;
    else done.push(steps);
    undone.length = 0;
  }

  /* Keep an entry as the latest of its reviewer on its thing, also where another machine's clock is
     ahead. What other tabs have kept is read first: this tab's text takes the place of theirs. */
  function put(key, entry) {
    merge(kept());
    const now = Date.now();
    const before = Date.parse(entries.get(key)?.time ?? "");
    const time = Number.isNaN(before) ? now : Math.max(now, before + 1);
    entries.set(key, { ...entry, time: new Date(time).toISOString() });
    save();
  }

  /* Take the last change back (or `again`); gives the frame and the region (null for none) it was
     on and words that say what was done, or null. What another tab or a file has changed since is
     left as it is. */
  function undo(again = false) {
    const steps = (again ? undone : done).pop();
    if (!steps) return null;
    merge(kept());
    const stands = ([key, before, after]) => isUnchanged(entries.get(key), again ? before : after);
    if (!steps.every(stands)) {
      const [, , { frame, region }] = steps.at(-1);
      tell();
      return { frame, region, words: "Left as it is: another tab or a file changed the verdict" };
    }
    (again ? done : undone).push(steps);
    for (const [key, before, after] of steps) put(key, again ? after : before);
    const [, before, after] = steps.at(-1);
    const entry = again ? after : before;
    const did = again ? "Done again" : "Undone";
    const words = `${did}: ${changeWords(before, after)}`;
    return { frame: entry.frame, region: entry.region, words };
  }

  /* What differs between two states of an entry. */
  function changeWords(before, after) {
    const { region } = after;
    const words = (verdict) => (region ? regionWords(region, verdict) : WORDS[verdict]);
    if (after.verdict !== before.verdict) {
      return words(after.verdict) || `no longer ${words(before.verdict)}`;
    }
    if (after.note !== before.note) return "the note";
    if (!isOneOutline(before, after)) return "the outline";
    return after.image_hash === before.image_hash ? "the threshold" : "the image that was judged";
  }

  /* Entries by frame, and the other reviewers, until the next change. */
  let index = null;
  let others = new Set();
  function byFrame() {
    if (index) return index;
    index = new Map();
    others = new Set(all().map(({ reviewer }) => reviewer));
    if (name !== null) others.delete(name);
    for (const entry of all()) {
      index.set(entry.frame, [...(index.get(entry.frame) ?? []), entry]);
    }
    return index;
  }

  const on = (frame) => byFrame().get(frame) ?? [];
  const isOwn = ({ reviewer }) => name !== null && reviewer === name;
  const countOthers = () => byFrame() && others.size;

  /* Whether labels and the verdicts of others are hidden until one has judged: where it was asked
     for, else from whoever has a name, which is whoever judges. Where two others have judged,
     differences are settled, and all is seen. */
  const blind = () => page.blind ?? (name !== null && countOthers() < 2);

  /* Whether the reviewer has a verdict on the frame. One on a region of it is none on the frame. */
  const judged = (frame) => on(frame).some((one) => isOwn(one) && !one.region && one.verdict);

  /* Whether a frame's labels and the verdicts of others may be seen. */
  const revealed = (frame) => !blind() || judged(frame);

  /* The verdict of each reviewer on a frame: {reviewer, verdict, note, derived}. Where only its
     regions have verdicts, `derived` is what was said of the region that counts, in words.
     Without `seen` they are the reviewer's own alone. */
  function opinions(frame, seen = revealed(frame)) {
    const found = new Map();
    for (const entry of on(frame)) {
      if (!seen && !isOwn(entry)) continue;
      const { reviewer, region, verdict, note, time } = entry;
      const opinion = found.get(reviewer) ?? blankOpinion(reviewer);
      found.set(reviewer, opinion);
      if (region) opinion.regions.push(entry);
      else Object.assign(opinion, { verdict, note });
      if (time > opinion.time) opinion.time = time;
    }
    for (const opinion of found.values()) {
      if (opinion.verdict) continue;
      const said = opinion.regions.filter(({ verdict }) => verdict);
      const [gravest] = said.sort((a, b) => gravity(a.verdict) - gravity(b.verdict));
      if (!gravest) continue;
      opinion.verdict = gravest.verdict;
      opinion.derived = regionWords(gravest.region, gravest.verdict);
    }
    return [...found.values()].filter(written);
  }

  function blankOpinion(reviewer) {
    return { reviewer, verdict: "", note: "", time: "", derived: "", regions: [] };
  }

  /* How grave a verdict is, 0 the gravest. "Nothing wrong" is the mildest: it is none of a
     region. */
  function gravity(verdict) {
    const place = GRAVEST.indexOf(verdict);
    return place < 0 ? GRAVEST.length : place;
  }

  /* What the reviewer's verdicts on regions say against the one on their frame; empty for
     nothing. Without the latter the frame would count by the gravest of them. */
  function contradiction(frame) {
    const own = on(frame).filter((entry) => isOwn(entry) && entry.verdict);
    const whole = own.find(({ region }) => !region)?.verdict;
    const said = own.filter(({ region }) => region).map(({ verdict }) => verdict);
    if (!whole || !said.length) return "";
    const gravest = said.reduce((a, b) => (gravity(b) < gravity(a) ? b : a));
    if (gravity(whole) > gravity(gravest)) {
      return graverWords(gravest, said.filter((verdict) => verdict === gravest).length);
    }
    if (whole === "true-alarm" && gravest === "false-alarm" && !said.includes("unsure")) {
      return "But all its judged regions are called false.";
    }
    return "";
  }

  /* That so many regions of a frame have a graver verdict than the frame. */
  function graverWords(verdict, count) {
    if (verdict === "missed") {
      const are = count === 1 ? "1 region or box is" : `${count} regions or boxes are`;
      return `But ${are} marked as missed on this frame.`;
    }
    const are = count === 1 ? "1 region is" : `${count} regions are`;
    return `But ${are} called ${REGION_WORDS[verdict]} on this frame.`;
  }

  /* The reviewer's own opinion on a frame; null without one, and for whoever has given no name. */
  const get = (frame) => opinions(frame).find(isOwn) ?? null;

  /* The opinion that filters and the timeline go by: the reviewer's own, or the latest of anybody
     for a reader without a name. */
  function usual(frame) {
    if (name !== null) return get(frame);
    let latest = null;
    for (const opinion of opinions(frame)) {
      if (!latest || opinion.time > latest.time) latest = opinion;
    }
    return latest;
  }

  const differ = (said) => new Set(said.map(({ verdict }) => verdict).filter(Boolean)).size > 1;

  /* The regions of a frame on which reviewers disagree, each as the entries on it. Boxes of two
     reviewers that overlap by at least half are one region, as in maps/verdicts.py. */
  function disputedRegions(frame, seen = revealed(frame)) {
    const groups = [];
    for (const entry of on(frame)) {
      if (!entry.region || !entry.verdict || (!seen && !isOwn(entry))) continue;
      let nearest = null;
      let most = 0.5;
      for (const group of groups) {
        const share = overlap(group[0].region.box, entry.region.box);
        const isOther = group.every(({ reviewer }) => reviewer !== entry.reviewer);
        if (!isOther || group[0].region.score !== entry.region.score || share < most) continue;
        nearest = group;
        most = share;
      }
      if (nearest) nearest.push(entry);
      else groups.push([entry]);
    }
    return groups.filter(differ);
  }

  /* Whether reviewers disagree on a frame as a whole. */
  const disagreeOnWhole = (frame, seen = revealed(frame)) => differ(opinions(frame, seen));

  /* Whether reviewers disagree on a frame or on a region of it. */
  const disagree = (frame, seen = revealed(frame)) =>
    disagreeOnWhole(frame, seen) || disputedRegions(frame, seen).length > 0;

  /* On how many frames reviewers disagree whose verdicts are hidden: of all frames of the page, so
     that no filter says which they are. */
  const hiddenDisputes = () =>
    segunc.data.frames.filter(({ name: frame }) => !revealed(frame) && disagree(frame, true))
      .length;

  function setName(text) {
    const before = name;
    name = cleanName(text);
    if (before !== null && name !== before) {
      // Nobody takes back what another reviewer said.
      done.length = 0;
      undone.length = 0;
    }
    store(NAME_KEY, name); // where that fails, the name lasts as long as the page
    tell();
  }

  const cleanName = (text) => wellFormed(text).normalize("NFC").replace(/\s+/g, " ").trim();

  /* The entries that this browser keeps. What is none is left out, counted, and kept under another
     key, since the next verdict overwrites it. Entries of other frames are kept as they are. */
  function kept() {
    const text = stored(KEY);
    if (text === null) return [];
    let list = null;
    try {
      list = JSON.parse(text);
    } catch {
      // somebody else's text under our key
    }
    const whole = Array.isArray(list) ? list : [null];
    const known = whole.map(cleanEntry).filter(Boolean);
    leftOut = whole.length - known.length;
    if (leftOut) store(DAMAGED_KEY, text);
    elsewhere = known.filter((entry) => !isHere(entry));
    return known.filter(isHere);
  }

  function start() {
    merge(imported.verdicts.map(clean).filter((entry) => entry && isHere(entry)));
    const storedName = stored(NAME_KEY);
    name = storedName === null ? null : cleanName(storedName);
    merge(kept());
    if (stored(KEY) !== null) storeOrigin(); // an earlier version did not
    listeners.push(() => {
      index = null;
    });
    // Another tab with the same run may write too.
    addEventListener("storage", (event) => {
      if (event.key === KEY && merge(kept())) tell();
    });
  }

  start();
  segunc.verdicts = {
    blind,
    judged,
    revealed,
    WORDS,
    REGION_WORDS,
    regionWords,
    contradiction,
    /* Whether another person has judged, whom who gives no name could follow. */
    followsAnother: () => page.blind === null && name === null && countOthers() === 1,
    /* Whether all is shown before the reviewer judges, because two others have. */
    isOpenByOthers: () => page.blind === null && countOthers() > 1,
    all,
    clean,
    set,
    get,
    usual,
    opinions: (frame) => opinions(frame),
    disagree: (frame) => disagree(frame),
    disagreeOnWhole: (frame) => disagreeOnWhole(frame),
    disputedRegions: (frame) => disputedRegions(frame),
    hiddenDisputes,
    undo,
    canUndo: () => done.length > 0,
    canRedo: () => undone.length > 0,
    setName,
    /* What the reviewer said of regions of a frame. */
    regions: (frame) => on(frame).filter((entry) => entry.region && isOwn(entry)),
    /* What others said of regions of a frame, where it may be seen. */
    othersOnRegions: (frame) =>
      revealed(frame) ? on(frame).filter((entry) => entry.region && !isOwn(entry)) : [],
    reviewer: () => name,
    add(list) {
      merge(kept());
      const taken = merge(list);
      if (taken) save();
      return taken;
    },
    /* Whether the browser keeps them; where it does not, only an export does. */
    kept: () => storable,
    leftOut: () => leftOut,
    elsewhere: () => elsewhere.filter((entry) => written(entry) && isOnImage(entry)).length,
    /* How many are on other images than their frames have here. */
    onOtherImages: () => elsewhere.filter((entry) => written(entry) && !isOnImage(entry)).length,
    /* How many do not say on which image they were given, though the maps do. */
    withoutImage: () => all().filter(namesNoImage).length,
    isOnImage,
    otherRuns,
    otherThresholds,
    onChange: (listener) => listeners.push(listener),
  };
})(segunc);
