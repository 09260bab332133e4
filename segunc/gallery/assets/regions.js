"use strict";
/* The regions of a frame: what the threshold flags, piece by piece, and boxes drawn around what was
   missed; each is judged by itself. */
(function (segunc) {
  const { element, svg, table, state, stage, maps, verdicts, overlap, announce } = segunc;
  const { layers, thresholdText } = segunc;
  const SHRUNK = "of the shrunk map of this page, in which regions may split or merge";
  const LISTED = 30; // more are named by their number alone
  const list = element("ol", { id: "regions", "aria-label": "Regions" });
  const note = element("p", { class: "small", id: "regions-note", role: "status" });
  // {region, entry, others, alarm, unflagged}: what there is to judge, with the verdict on it or
  // null, the verdicts of other reviewers on it, the recorded alarm that it is or null, and whether
  // it was judged as a flagged region that what is flagged now does not have
  let shown = [];
  let drawn = null; // the box that is being dragged
  let stamp = "";
  let flagged = { stamp: "", found: [], small: 0, whole: true };

  /* Scales from pixels of a map to those of its frame, of which a condensed map has fewer. */
  function scalesOf(map, size) {
    return {
      across: (x) => Math.round((x * size[1]) / map.width),
      down: (y) => Math.round((y * size[0]) / map.height),
    };
  }

  /* Runs of pixels of a row at or above the threshold: {y, from, to, highest, at, excess}, `at` the
     column of the highest value and `excess` the sum of what the pixels exceed the threshold by. */
  function runsOf(map, threshold, y) {
    const runs = [];
    let run = null;
    for (let x = 0; x < map.width; x++) {
      const value = map.value(y * map.width + x);
      if (!(value >= threshold)) {
        run = null;
        continue;
      }
      if (run === null) {
        run = { y, from: x, to: x, highest: -Infinity, at: x, excess: 0 };
        runs.push(run);
      }
      run.to = x + 1;
      run.excess += value - threshold;
      if (value > run.highest) {
        run.highest = value;
        run.at = x;
      }
    }
    return runs;
  }

  /* Groups of runs that touch (8 neighbours). */
  function joined(rows) {
    const parent = new Map();
    const root = (run) => {
      let top = run;
      while (parent.get(top) !== top) top = parent.get(top);
      parent.set(run, top);
      return top;
    };
    let above = [];
    for (const runs of rows) {
      let first = 0;
      for (const run of runs) {
        parent.set(run, run);
        while (first < above.length && above[first].to < run.from) first++;
        for (let i = first; i < above.length && above[i].from <= run.to; i++) {
          parent.set(root(above[i]), root(run));
        }
      }
      above = runs;
    }
    const groups = new Map();
    for (const run of parent.keys()) {
      const key = root(run);
      if (groups.has(key)) groups.get(key).push(run);
      else groups.set(key, [run]);
    }
    return [...groups.values()];
  }

  /* A group of runs in pixels of the frame. */
  function pieceOf(runs, map, size) {
    const { across, down } = scalesOf(map, size);
    const left = Math.min(...runs.map(({ from }) => from));
    const right = Math.max(...runs.map(({ to }) => to));
    const top = Math.min(...runs.map(({ y }) => y));
    const bottom = Math.max(...runs.map(({ y }) => y)) + 1;
    const strongest = runs.reduce((a, b) => (b.highest > a.highest ? b : a));
    const pixels = (size[0] * size[1]) / (map.width * map.height);
    let area = 0;
    let excess = 0;
    for (const { y, from, to, excess: part } of runs) {
      area += (across(to) - across(from)) * (down(y + 1) - down(y));
      excess += part;
    }
    return {
      box: [across(left), down(top), across(right) - across(left), down(bottom) - down(top)],
      area,
      value: map.highest(strongest.highest),
      peak: [across(strongest.at), down(strongest.y)],
      strength: excess * pixels,
      runs,
    };
  }

  /* Pixels of the smallest flagged region that is listed, in a frame as among all alarms. */
  const smallestRegion = (score) => segunc.data.page.scores[score].smallest_region;

  /* The connected pieces of a map at or above a threshold, the largest first, and how many are
     smaller than `smallest` pixels. */
  function pieces(map, threshold, size, smallest) {
    const rows = [];
    for (let y = 0; y < map.height; y++) rows.push(runsOf(map, threshold, y));
    const every = joined(rows).map((runs) => pieceOf(runs, map, size));
    const found = every.filter(({ area }) => area >= smallest).sort((a, b) => b.area - a.area);
    return { found, small: every.length - found.length };
  }

  /* The regions of the whole map, where the page has only a shrunk one, in which they may split or
     merge. */
  function recordedPieces(map) {
    const { list: described, small, masks } = map.regions;
    const listed = described.map(([x, y, w, h, area, value, px, py, strength], place) => {
      return { box: [x, y, w, h], area, value, peak: [px, py], strength, mask: masks[place] };
    });
    return { found: listed.sort((a, b) => b.area - a.area), small };
  }

  /* Whether the page knows the regions of the whole map at a threshold. */
  const isListed = (map, score, threshold) =>
    map.regions !== null && threshold === table.recordedThreshold(score);

  /* Whether regions at a threshold are those of the whole map, and not of a shrunk one. */
  const isWhole = (map, score, threshold, size) =>
    map.width === size[1] || isListed(map, score, threshold);

  /* The regions of a map at or above a threshold, the largest first, and how many are smaller than
     `smallest` pixels: those of the whole map where the page knows them. */
  function flaggedIn(map, score, threshold, size, smallest) {
    if (isListed(map, score, threshold)) return recordedPieces(map);
    return pieces(map, threshold, size, smallest);
  }

  /* The pixels of a piece in its frame, as start and length of each run, row by row. */
  function maskOf({ mask: known = null, runs = [] }, map, size) {
    if (known) return known;
    const { across, down } = scalesOf(map, size);
    const inOrder = [...runs].sort((a, b) => a.y - b.y || a.from - b.from);
    const mask = [];
    for (let first = 0; first < inOrder.length;) {
      const { y } = inOrder[first];
      let next = first;
      while (next < inOrder.length && inOrder[next].y === y) next++;
      const parts = inOrder.slice(first, next);
      for (let line = down(y); line < down(y + 1); line++) {
        for (const { from, to } of parts) {
          mask.push(line * size[1] + across(from), across(to) - across(from));
        }
      }
      first = next;
    }
    return mask;
  }

  /* A piece as it stands in a verdict. */
  function regionOf(piece, map, score, threshold, size) {
    const { box, area, value } = piece;
    const preparation = table.preparationOf(score);
    const mask = maskOf(piece, map, size);
    return { score, threshold, preparation, box, area, value, mask, size };
  }

  /* The entry, of some on regions by a score, whose box overlaps another most: at least half. */
  function nearest(entries, score, box) {
    let best = null;
    let most = 0.5;
    for (const entry of entries) {
      if (entry.region.score !== score) continue;
      const share = overlap(entry.region.box, box);
      if (share < most) continue;
      best = entry;
      most = share;
    }
    return best;
  }

  /* Of each reviewer the verdict, among entries on regions by a score, whose box overlaps another
     most: at least half. */
  function nearestOfEach(entries, score, box) {
    const said = entries.filter(({ verdict }) => verdict);
    const names = [...new Set(said.map(({ reviewer }) => reviewer))];
    return names
      .map((name) => {
        const own = said.filter(({ reviewer }) => reviewer === name);
        return nearest(own, score, box);
      })
      .filter(Boolean);
  }

  /* That a verdict on a region that is shown was given at another outline of it; empty where it was
     given at this one. At another threshold a region has more or fewer pixels. */
  function outlineWords({ region: judged }, { area }) {
    if (judged.area === area) return "";
    const from = judged.threshold === null ? "" : ` at ≥ ${thresholdText(judged.threshold)}`;
    return ` (judged at another outline: ${judged.area.toLocaleString("en")} px${from})`;
  }

  /* The verdict of an entry on a region that is shown, in words. */
  const verdictWords = (entry, region) =>
    verdicts.regionWords(entry.region, entry.verdict) + outlineWords(entry, region);

  const saidWords = (entry, region) =>
    `${entry.reviewer || "no name"}: ${verdictWords(entry, region)}`;

  /* The verdicts of reviewers on a region that is shown, each with the name. */
  function badges(entries, region) {
    return entries.map((entry) => {
      const attributes = { class: `verdict badge person ${entry.verdict}` };
      return element("span", attributes, saidWords(entry, region));
    });
  }

  /* The alarms of a frame as they stand in the list of alarms, at the recorded threshold. */
  function recordedAlarms(index, score, threshold) {
    const isRecorded = score === segunc.data.page.ranking;
    if (!isRecorded || threshold !== table.recordedThreshold(score)) return [];
    const { alarms } = segunc.data.frames[index];
    return alarms.map((alarm) => ({ alarm, region: { score, box: alarm.box } }));
  }

  /* A region with the size and the peak of the alarm that it is: those of the stored map, of which
     the page's map has fewer steps. */
  function asAlarm(region, alarm) {
    if (!alarm) return region;
    return { ...region, area: alarm.area, value: alarm.values[region.score] };
  }

  /* What there is to judge on the frame that is seen: pieces at the threshold, with the verdict on
     the one they overlap most, and regions with a verdict, of this reviewer or of another, that are
     no piece now. */
  function collect(index) {
    const { score, threshold, map } = flaggedMap(index);
    const key = `${index}/${score}/${threshold}`;
    if (map && flagged.stamp !== key) {
      const size = stage.size();
      const { found, small } = flaggedIn(map, score, threshold, size, smallestRegion(score));
      const alarms = recordedAlarms(index, score, threshold);
      const regions = found.map((piece) => {
        const region = regionOf(piece, map, score, threshold, size);
        return asAlarm(region, nearest(alarms, score, region.box)?.alarm);
      });
      const whole = isWhole(map, score, threshold, size);
      flagged = { stamp: key, found: regions, small, whole };
    }
    const own = new Set(verdicts.regions(table.name(index)));
    const others = new Set(verdicts.othersOnRegions(table.name(index)));
    const rows = [];
    const recorded = recordedAlarms(index, score, threshold);
    const add = (region, entry, isFlagged = false) => {
      const alarm = nearest(recorded, region.score, region.box)?.alarm ?? null;
      const said = nearestOfEach([...others], region.score, region.box);
      for (const one of said) others.delete(one);
      const unflagged = map !== null && !isFlagged && region.score !== null;
      rows.push({ region, entry, others: said, alarm, unflagged });
    };
    for (const region of map ? flagged.found : []) {
      const entry = nearest(own, score, region.box);
      own.delete(entry);
      add(region, entry, true);
    }
    const count = rows.length;
    for (const entry of own) add(entry.region, entry);
    // What others alone judged, such as a box around a missed object.
    for (const entry of others) if (entry.verdict) add(entry.region, null);
    note.textContent = map ? countWords(count, rows, flagged) : "";
    return rows;
  }

  /* The threshold by which the frame is flagged, and the map where it is loaded. */
  function flaggedMap(index) {
    const current = state.get();
    const threshold = current.flags ? table.thresholdOf(current) : null;
    const { score } = current;
    const map = threshold !== null && score ? maps.peek(table.place(index), score) : null;
    return { score, threshold, map };
  }

  function countWords(count, rows, { small, whole }) {
    const words = [`${count} flagged region${count === 1 ? "" : "s"}`];
    const others = rows.filter(({ unflagged }) => unflagged).length;
    if (others) words.push(`${others} judged and not flagged as one here`);
    if (small) words.push(`${small} smaller not listed`);
    if (!whole) words.push(SHRUNK);
    return words.join(", ");
  }

  function update(index) {
    const { region, view } = state.get();
    if (index === null || view !== "frame") return;
    const { score, threshold, map } = flaggedMap(index);
    const name = table.name(index);
    const judged = [verdicts.regions(name), verdicts.othersOnRegions(name)];
    const key = JSON.stringify([index, score, threshold, region, Boolean(map), judged]);
    if (key === stamp) return;
    stamp = key;
    shown = collect(index);
    list.replaceChildren(...shown.slice(0, LISTED).map(row));
    list.hidden = !shown.length;
    draw();
  }

  /* At which threshold a region was judged that is not flagged as one now, with the score where
     that is another one. */
  function unflaggedWords({ score, threshold }) {
    const name = score === state.get().score ? "" : `${layers.name(score)} `;
    const from = threshold === null ? "" : ` at ${name}≥ ${thresholdText(threshold)}`;
    return `judged${from}, not flagged as one region here`;
  }

  function title({ region, entry, unflagged }) {
    let words = "drawn";
    if (region.score) {
      const peak = region.value === null ? "" : `, max ${segunc.digits(region.value, 3)}`;
      words = `${region.area.toLocaleString("en")} px${peak}`;
    }
    if (entry?.verdict) words += ` · ${verdictWords(entry, region)}`;
    return unflagged ? `${words} · ${unflaggedWords(region)}` : words;
  }

  function row(item, position) {
    const attributes = {
      type: "button",
      "aria-pressed": String(state.get().region === position),
      "data-verdict": item.entry?.verdict ?? "",
      onclick: () => select(state.get().region === position ? null : position),
    };
    const button = element("button", attributes, `${position + 1} · ${title(item)}`);
    const said = badges(item.others, item.region);
    return element("li", {}, button, said.length ? element("p", {}, ...said) : null);
  }

  function rectangle([x, y, width, height]) {
    return svg("rect", { x, y, width, height });
  }

  /* What others alone said of a box that one of them drew: {verdict, names}, where they differ the
     verdict that it was drawn with; null for everything else. */
  function drawnByOthers({ region, entry, others }) {
    if (region.score !== null || entry?.verdict || !others.length) return null;
    const { verdict } = others.find((said) => said.verdict === "missed") ?? others[0];
    const who = others.filter((said) => said.verdict === verdict);
    return { verdict, names: who.map(({ reviewer }) => reviewer || "no name").join(", ") };
  }

  function outlineOf(item, position) {
    const { region, entry, unflagged } = item;
    const verdict = entry?.verdict || drawnByOthers(item)?.verdict || "";
    const classes = ["region", verdict];
    if (position === state.get().region) classes.push("chosen");
    if (!region.score) classes.push("drawn");
    if (unflagged) classes.push("unflagged");
    const [x, y] = region.box;
    // Above the upper edge of the picture a number would be cut off.
    const [height, width] = stage.size();
    const isAtTop = y < 0.1 * height;
    const place = { x, y, class: isAtTop ? "below" : "" };
    // Beyond the right edge, too.
    if (x > 0.95 * width) place["text-anchor"] = "end";
    const number = svg("text", place, String(position + 1));
    const attributes = { class: classes.join(" ") };
    return svg("g", attributes, rectangle(region.box), rectangle(region.box), number);
  }

  function draw() {
    const [height, width] = stage.size();
    const outlines = shown.map(outlineOf);
    if (drawn) outlines.push(svg("g", { class: "region drawn chosen" }, rectangle(drawn)));
    stage.boxes.setAttribute("viewBox", `0 0 ${width} ${height}`);
    stage.boxes.replaceChildren(...outlines);
    stage.draw();
  }

  function select(position) {
    state.set({ region: position });
    const item = shown[position];
    if (!item) return;
    const [x, y, w, h] = item.region.box;
    const [height, width] = stage.size();
    if (state.get().zoom > 1) state.set({ x: (x + w / 2) / width, y: (y + h / 2) / height });
    const said = item.others.map((entry) => saidWords(entry, item.region));
    const words = [title(item), ...said].join("; ");
    announce(`region ${position + 1} of ${shown.length}: ${words}`);
  }

  /* To the next or previous region; the first asks the threshold to show what it flags. */
  function step(by) {
    if (!state.get().flags && state.get().score) segunc.frame.toggle("flags");
    const now = state.get().region;
    if (!shown.length) announce("no region at this threshold", true);
    else if (now === null) select(by > 0 ? 0 : shown.length - 1);
    else select((now + by + shown.length) % shown.length);
  }

  /* Where the list has a region, or the one that it overlaps most; null where it has none. */
  function placeOf(region) {
    const listed = shown.map((item) => ({ region: item.entry?.region ?? item.region }));
    const found = nearest(listed, region.score, region.box);
    return found && listed.indexOf(found);
  }

  /* Whether a region was there to be judged. */
  function judge(verdict) {
    const item = shown[state.get().region];
    if (!item) return false;
    if (verdict && !Object.hasOwn(verdicts.REGION_WORDS, verdict)) {
      announce("a region is true, false, part of a missed object, or unsure", true);
      return true;
    }
    // A verdict is on the outline that is seen, also where an earlier one was on another.
    const earlier = item.entry?.region ?? null;
    const region = verdict ? item.region : (earlier ?? item.region);
    verdicts.set(table.name(stage.shown()), { verdict }, region, earlier);
    const words = verdict ? verdicts.regionWords(region, verdict) : "verdict taken back";
    announce(`${region.score === null ? "drawn box" : "region"}: ${words}`, true);
    return true;
  }

  /* The box between two places of the frame (shares of its width and height), inside of it. */
  function boxOf([[x1, y1], [x2, y2]]) {
    const [height, width] = stage.size();
    const within = (share, side) => Math.round(Math.min(1, Math.max(0, share)) * side);
    const left = within(Math.min(x1, x2), width);
    const right = within(Math.max(x1, x2), width);
    const top = within(Math.min(y1, y2), height);
    const bottom = within(Math.max(y1, y2), height);
    return [left, top, right - left, bottom - top];
  }

  /* Show the box between two places that is being dragged; null for none. */
  function drag(corners) {
    drawn = corners && boxOf(corners);
    draw();
  }

  /* Keep the box between two places as a missed object. */
  function mark(corners) {
    const box = boxOf(corners);
    const [x, y, width, height] = box;
    const area = width * height;
    state.set({ marking: false });
    drag(null);
    if (area < segunc.data.page.objects.smallest) {
      announce("too small a box; nothing was marked", true);
      return;
    }
    const size = stage.size();
    const mask = [];
    for (let line = y; line < y + height; line++) mask.push(line * size[1] + x, width);
    const setting = { score: null, threshold: null, preparation: null, value: null };
    const region = { ...setting, box, area, size, mask };
    verdicts.set(table.name(stage.shown()), { verdict: "missed" }, region);
    announce(`missed object marked at ${x}, ${y}, ${width} x ${height} pixels`, true);
  }

  segunc.regions = {
    list,
    note,
    update,
    step,
    judge,
    drag,
    mark,
    select,
    placeOf,
    flaggedIn,
    isWhole,
    SHRUNK,
    smallestRegion,
    maskOf,
    regionOf,
    asAlarm,
    nearest,
    nearestOfEach,
    badges,
    drawnByOthers,
    verdictWords,
    unflaggedWords,
    shown: () => shown,
    chosen: () => shown[state.get().region] ?? null,
  };
})(segunc);
