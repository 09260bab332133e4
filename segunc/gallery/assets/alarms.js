"use strict";
/* All flagged regions of all frames as one list, the strongest first: each with its crop, what is
   predicted there, its size and place, the scores at its peak and why it is one, and judged with
   one key or one press. Those of the recorded threshold come with the page; those of another are
   found in the maps. */
(function (segunc) {
  const { element, table, state, verdicts, regions, maps, layers, stage, reviewing } = segunc;
  const { thresholdText, digits, overlap, announce } = segunc;
  const { page, frames } = segunc.data;
  const MOST = 500; // alarms in the list
  const A_FRAME = 5; // alarms of a frame, as in gallery/alarms.py
  const CONTEXT = 0.6; // of the box around it, on each side of the crop
  const AT_ONCE = 8; // maps that are read at the same time
  const PAUSE = 250; // milliseconds without a change before the maps are read for a new threshold
  const list = element("ol", { id: "alarm-list", "aria-label": "Alarms" });
  const note = element("p", { class: "small", id: "alarm-note", role: "status" });
  const progress = element("p", { class: "small", id: "alarm-progress", hidden: true });
  const drawingNote = element("p", { class: "small", id: "alarm-drawing", hidden: true });
  const learning = element("p", { id: "alarm-learning", role: "status", hidden: true });
  // After the last alarm the focus goes here, so that the next key replaces no verdict.
  const listEnd = element("div", { id: "alarm-end", tabindex: "-1", hidden: true });
  const controls = {};
  const { events } = page;

  /* The alarms of the recorded threshold, the strongest first. */
  const recorded = [];
  frames.forEach((frame, index) => {
    for (const alarm of frame.alarms) recorded.push({ ...alarm, index, frame: frame.name });
  });
  recorded.sort((a, b) => b.strength - a.strength);

  // Where maps say why some alarms are ones, the others say that they do not.
  const hasReasons = recorded.some(({ reasons }) => reasons.parts || reasons.nearest);

  /* Of each event its strongest alarm, which stands for it. */
  const leaders = new Map();
  for (const alarm of recorded) {
    if (alarm.event !== null && !leaders.has(alarm.event)) leaders.set(alarm.event, alarm);
  }

  /* What is listed: the alarms at a threshold of a score. */
  // With how many regions are flagged, and in how many frames a map could not be read.
  let listing = { score: null, threshold: null, alarms: [], regions: 0, unread: 0, isWhole: true };
  let shown = [];
  let at = 0; // the alarm that had the focus last; behind the last one, the end of the list
  let stamp = "";
  let token = 0; // of the reading of maps that counts
  const crops = new WeakMap(); // row -> promise of its crop
  let drawing = 0; // of the drawing of crops that counts
  let timer = null;

  /* Where it lies, in words. */
  function place({ index, box: [x, y, w, h] }) {
    const [height, width] = table.size(index);
    const across = (x + w / 2) / width;
    const down = (y + h / 2) / height;
    const word = (share, ends, words) => words[ends.filter((end) => share >= end).length];
    const vertical = word(down, [0.4, 0.7], ["top", "middle", "bottom"]);
    return `${vertical} ${word(across, [1 / 3, 2 / 3], ["left", "centre", "right"])}`;
  }

  const entryOf = (alarm) =>
    regions.nearest(verdicts.regions(alarm.frame), listing.score, alarm.box);

  /* What other reviewers said of an alarm, one entry of each. */
  const othersOn = (alarm) =>
    regions.nearestOfEach(verdicts.othersOnRegions(alarm.frame), listing.score, alarm.box);

  /* The part of a frame around a box, of the shape of a canvas. */
  function windowOf({ index, box: [x, y, w, h] }, canvas) {
    const [rows, columns] = table.size(index);
    const side = Math.min(Math.max(w, h, 48) * (1 + 2 * CONTEXT), Math.max(rows, columns));
    const width = Math.min(columns, side * Math.max(1, canvas.width / canvas.height));
    const height = Math.min(rows, side);
    const left = Math.min(columns - width, Math.max(0, x + w / 2 - width / 2));
    const top = Math.min(rows - height, Math.max(0, y + h / 2 - height / 2));
    return { left, top, width, height };
  }

  /* The picture around a region, which is outlined. */
  async function crop(alarm, canvas) {
    const photo = await stage.photoOf(alarm.index);
    const { left, top, width, height } = windowOf(alarm, canvas);
    const scale = Math.min(canvas.width / width, canvas.height / height);
    const draw = canvas.getContext("2d");
    const margins = [(canvas.width - width * scale) / 2, (canvas.height - height * scale) / 2];
    draw.setTransform(1, 0, 0, 1, ...margins);
    if (!photo.hidden) {
      const natural = photo.naturalWidth / table.size(alarm.index)[1];
      const source = [left, top, width, height].map((length) => length * natural);
      draw.drawImage(photo, ...source, 0, 0, width * scale, height * scale);
    }
    const [x, y, w, h] = alarm.box;
    draw.lineJoin = "miter";
    for (const [colour, line] of [
      ["#000", 5],
      ["#00e0e0", 2],
    ]) {
      draw.strokeStyle = colour;
      draw.lineWidth = line;
      draw.strokeRect((x - left) * scale, (y - top) * scale, w * scale, h * scale);
    }
  }

  /* What a part of the score looks at. */
  const PARTS = {
    "deterministic-energy": "network",
    knn: page.second_encoder ? "second encoder" : "features",
  };

  /* How rare a part of a score is by itself: one in so many pixels of normal scenes. */
  function rarity(decades) {
    if (decades < 0.5) return "usual";
    const measured = page.scores[listing.score].measured_to ?? Infinity;
    const pixels = Number((10 ** Math.min(decades, measured)).toPrecision(2));
    return `${decades > measured ? "< " : ""}1 in ${pixels.toLocaleString("en")}`;
  }

  /* Why it is an alarm, as recorded at its peak: how rare each part is by itself, the rarest first,
     and the most similar training frame. */
  function why({ parts = {}, nearest }) {
    const lines = [];
    const said = Object.entries(parts).sort((a, b) => b[1] - a[1]);
    const words = said.map(([name, decades], i) => {
      const unit = i ? "" : " decades";
      const part = PARTS[name] ?? layers.name(name);
      return `${part} ${decades.toFixed(1)}${unit} (${rarity(decades)})`;
    });
    if (words.length) lines.push(`why: ${words.join(", ")}`);
    if (nearest) {
      const distance = nearest.distance.toFixed(2);
      lines.push(`most like training frame ${nearest.frame}, distance ${distance}`);
    }
    return lines;
  }

  function eventWords(alarm) {
    if (alarm.event === null) return null;
    const { start: first, end: last, frames: count } = events[alarm.event];
    if (count === 1) return "event of one frame";
    const ends = [first, last].map((index) => segunc.seconds(table.time(index)));
    return `event ${ends[0]} to ${ends[1]}, ${count} frames`;
  }

  // What the base alone says of these two is nearly what they say.
  const REPEATED = ["msp", "deterministic-msp", "deterministic-entropy"];

  /* The score at the peak and, where nothing says why, the others there. */
  function peakWords(alarm, because) {
    const { score } = listing;
    const peak = alarm.values[score];
    const measured = page.scores[score].measured_to;
    const beyond = measured !== null && peak > measured ? ` (measured up to ${measured})` : "";
    const others = Object.entries(alarm.values).filter(
      ([name]) => name !== score && !REPEATED.includes(name),
    );
    const there = others.map(([name, value]) => `${layers.name(name)} ${digits(value, 3)}`);
    const rest = there.length && !because.length ? `; there ${there.join(", ")}` : "";
    return `peak ${digits(peak, 3)}${beyond}${rest}`;
  }

  function linesOf(alarm) {
    const time = table.time(alarm.index);
    const named = alarm.class_id === null ? "" : `taken for ${layers.className(alarm.class_id)}`;
    const because = why(alarm.reasons);
    const isSilent = hasReasons && listing.score === page.ranking && !because.length;
    const when = [time === null ? null : segunc.seconds(time), eventWords(alarm)];
    const where = [named, place(alarm), `${alarm.area.toLocaleString("en")} px`];
    return [
      when.filter(Boolean).join(" · "),
      where.filter(Boolean).join(" · "),
      peakWords(alarm, because),
      ...because,
      isSilent ? "why: not recorded for this region" : null,
    ].filter(Boolean);
  }

  const titleOf = (alarm, position) =>
    `Alarm ${position + 1} of ${shown.length}, in frame ${alarm.frame}`;

  function row(alarm, position) {
    const label = `crop of ${alarm.frame}`;
    const canvas = element("canvas", { width: 260, height: 150, role: "img", "aria-label": label });
    const words = linesOf(alarm).map((line) => element("span", {}, line));
    const title = element("b", {}, titleOf(alarm, position));
    const verdict = element("span", { class: "verdict" });
    const others = element("span", { class: "others" });
    const ownNote = element("span", { class: "own-note" });
    const attributes = {
      type: "button",
      class: "alarm",
      "data-position": position,
      title: "Open the frame (Enter)",
      onclick: () => open(alarm, listing.score, listing.threshold),
    };
    const button = element(
      "button",
      attributes,
      canvas,
      element("span", {}, title, ...words, verdict, others, ownNote),
    );
    const item = element("li", {}, button, NOT_DRAWN.cloneNode(true), verdictButtons(position));
    showVerdict(item, alarm);
    return item;
  }

  /* Printed in the place of a crop that was not drawn in time. */
  const NOT_DRAWN = element(
    "p",
    { class: "not-drawn" },
    "This crop was not drawn yet. Print again when the line “drawing the crops” is gone.",
  );

  const PARTLY = "The alarm covers only a part of an object, and the rest was missed";
  const SHORT = { missed: "part of a miss", "": "take back" };

  function verdictButtons(position) {
    const kinds = [...Object.keys(verdicts.REGION_WORDS), ""];
    const buttons = kinds.map((verdict) => {
      const words = SHORT[verdict] ?? verdicts.REGION_WORDS[verdict];
      const attributes = {
        type: "button",
        "data-verdict": verdict,
        title: verdict === "missed" ? PARTLY : null,
        // As with a key, the next alarm has the focus then, so that no second verdict replaces it.
        onclick: () => judgeAt(position, verdict, () => verdict && focusOn(position + 1)),
      };
      const key = element("kbd", {}, segunc.frame.VERDICT_KEYS[verdict]);
      return element("button", attributes, element("span", {}, words), key);
    });
    const label = `Verdict and note on alarm ${position + 1}`;
    return element(
      "div",
      { class: "alarm-verdicts", role: "group", "aria-label": label },
      ...buttons,
      noteButton(position),
    );
  }

  function noteButton(position) {
    const attributes = {
      type: "button",
      class: "write-note",
      title: `Write a note on frame ${shown[position].frame}`,
      onclick: () => writeNoteAt(position),
    };
    const words = element("span", {}, "note on frame");
    return element("button", attributes, words, element("kbd", {}, "e"));
  }

  function showVerdict(item, alarm) {
    const entry = entryOf(alarm);
    const verdict = entry?.verdict ?? "";
    const mark = item.querySelector(".verdict");
    mark.className = `verdict badge person ${verdict}`;
    mark.textContent = verdict ? regions.verdictWords(entry, alarm) : "";
    mark.hidden = !verdict;
    item.querySelector(".others").replaceChildren(...regions.badges(othersOn(alarm), alarm));
    const words = verdicts.get(alarm.frame)?.note ?? "";
    item.querySelector(".own-note").textContent = words && `your note on the frame: ${words}`;
    for (const button of item.querySelectorAll(".alarm-verdicts [data-verdict]")) {
      const kind = button.dataset.verdict;
      if (kind) button.setAttribute("aria-pressed", String(kind === verdict));
      else button.disabled = !verdict;
    }
  }

  /* Open the frame of an alarm at a score and its threshold, with the alarm chosen. */
  function open(alarm, score, threshold) {
    const layer = table.has(alarm.index, "image") ? "overlay" : score;
    const whole = { region: null, zoom: 1, x: 0.5, y: 0.5 };
    state.set({
      view: "frame",
      frame: alarm.frame,
      score,
      layer,
      threshold,
      flags: true,
      ...whole,
    });
    segunc.frame.ready()?.then(() => {
      const isIt = ({ region }) => overlap(region.box, alarm.box) >= 0.5;
      const position = regions.shown().findIndex(isIt);
      if (position >= 0) regions.select(position);
    });
  }

  /* Open an alarm of the recorded threshold, whichever is set. */
  function openRecorded(alarm) {
    open(alarm, page.ranking, table.recordedThreshold(page.ranking));
  }

  /* Move to an alarm, or behind the last one to the end of the list. */
  function focusOn(position) {
    at = Math.min(shown.length, Math.max(0, position));
    const target = list.children[at]?.querySelector("button") ?? listEnd;
    target.focus();
    (list.children[at] ?? listEnd).scrollIntoView({ block: "nearest" });
  }

  /* Give the focus to the alarm that is next. If it is the first, the list opens at its upper end,
     where its threshold is: in a narrow window there may be no room for both. */
  function openList() {
    const first = at === 0 && list.children[0]?.querySelector("button");
    if (!first) {
      focusOn(at);
      return;
    }
    first.focus({ preventScroll: true });
    document.getElementById("alarms-view").scrollTop = 0;
  }

  /* Bring the alarm that is next into sight again, after something above it became taller. */
  function keepInSight() {
    if (!document.activeElement?.closest?.("#alarm-list, #alarm-end")) return;
    (list.children[at] ?? listEnd).scrollIntoView({ block: "nearest" });
  }

  /* Position of the first alarm without a verdict, from a position on; -1 if all have one. */
  function firstOpen(from = 0) {
    return shown.findIndex((alarm, position) => position >= from && !isJudged(alarm));
  }

  /* Move to the next alarm without a verdict, and behind the last one to the first of the list. */
  function nextOpen() {
    const later = firstOpen(at + 1);
    const position = later < 0 ? firstOpen() : later;
    if (position < 0) announce(shown.length ? endWords() : "there is no alarm to judge", true);
    else focusOn(position);
  }

  /* Judge the alarm that has the focus (else the last that had it) and go to the next. The name is
     asked for and the focus moves before the map is waited for: the next key must find the dialog
     or the next alarm. */
  function judge(verdict) {
    const focused = document.activeElement?.closest?.("#alarm-list li");
    if (focused) at = [...list.children].indexOf(focused);
    if (shown.length && at === shown.length) {
      announce(`nothing was changed: ${endWords()} The key ↑ leads back to the last alarm.`, true);
      return;
    }
    judgeAt(at, verdict, () => focusOn(at + 1));
  }

  /* Write the note on the frame of the alarm that has the focus, else of the last that had it. */
  function writeNote() {
    const focused = document.activeElement?.closest?.("#alarm-list li");
    if (focused) at = [...list.children].indexOf(focused);
    if (shown[at]) writeNoteAt(at);
    else announce("no alarm is chosen: the arrows lead to one", true);
  }

  function writeNoteAt(position) {
    at = position;
    segunc.notes.open(shown[position].frame, () => focusOn(position));
  }

  /* The number that a region of a frame has in the list; null where it is not listed. */
  function numberOf(frame, region) {
    const ofFrame = shown.filter((alarm) => alarm.frame === frame);
    const candidates = ofFrame.map((alarm) => ({
      alarm,
      region: { score: listing.score, box: alarm.box },
    }));
    const found = regions.nearest(candidates, region.score, region.box);
    return found && shown.indexOf(found.alarm) + 1;
  }

  function judgeAt(position, verdict, judged = () => {}) {
    const alarm = shown[position];
    if (!alarm) return;
    if (verdict && !Object.hasOwn(verdicts.REGION_WORDS, verdict)) {
      announce("an alarm is true, false, part of a missed object, or unsure", true);
      return;
    }
    at = position;
    reviewing.named(() => {
      judged();
      return store(alarm, position, verdict);
    });
  }

  /* Keep a verdict on an alarm as one on the region of its frame that it is. */
  async function store(alarm, position, verdict) {
    const earlier = entryOf(alarm)?.region ?? null;
    const region = (verdict && (await regionAt(alarm, listing))) || earlier;
    if (verdict && !region) {
      announce(`alarm ${position + 1} is too small to be judged by itself; open its frame`, true);
      return;
    }
    if (region) verdicts.set(alarm.frame, { verdict }, region, earlier);
    keepInSight();
    const said = verdict ? verdicts.REGION_WORDS[verdict] : "verdict taken back";
    const last = verdict && position === shown.length - 1 ? `. ${endWords()}` : "";
    announce(`alarm ${position + 1}: ${said}${last}`, true);
  }

  /* The region of the page's map that is an alarm; null where the map is too coarse for it. */
  async function regionAt(alarm, { score, threshold }) {
    const map = await maps.get(table.place(alarm.index), score);
    const size = table.size(alarm.index);
    // A map of the page has fewer steps than the stored one, so the alarm may be smaller there.
    const { found } = regions.flaggedIn(map, score, threshold, size, 1);
    const candidates = found.map((piece) => ({ piece, region: { score, box: piece.box } }));
    const nearest = regions.nearest(candidates, score, alarm.box);
    if (!nearest) return null;
    return regions.asAlarm(regions.regionOf(nearest.piece, map, score, threshold, size), alarm);
  }

  const inSight = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        inSight.unobserve(target);
        drawCrop(target);
      }
    },
    { rootMargin: "400px" },
  );

  /* Draw the crop of a row, once. */
  function drawCrop(item) {
    if (!crops.has(item)) crops.set(item, startCrop(item));
    return crops.get(item);
  }

  async function startCrop(item) {
    const { position } = item.querySelector("button").dataset;
    await crop(shown[Number(position)], item.querySelector("canvas"));
    item.dataset.crop = "drawn";
  }

  /* Draw the crops that are out of sight, too, one after the other while the list is open: a
     printer does not wait for them. */
  async function drawRest() {
    const mine = ++drawing;
    const items = [...list.children];
    // A frame's picture is read once for all of its alarms.
    const order = items.map((_, i) => i).sort((a, b) => shown[a].index - shown[b].index);
    for (const [done, position] of order.entries()) {
      drawingNote.hidden = false;
      drawingNote.textContent = `drawing the crops: ${done} of ${order.length}`;
      await drawCrop(items[position]);
      await new Promise((resolve) => setTimeout(resolve)); // keys and the pointer come first
      if (mine !== drawing) return;
      if (state.get().view !== "alarms") break;
    }
    drawingNote.hidden = true;
  }

  /* The class that most pixels of a mask of a frame are predicted as; null without a
     prediction. */
  function classOf(mask, prediction, [height, width]) {
    if (!prediction) return null;
    const counts = new Uint32Array(256);
    for (let i = 0; i < mask.length; i += 2) {
      const y = Math.floor(((Math.floor(mask[i] / width) + 0.5) * prediction.height) / height);
      const left = mask[i] % width;
      for (let x = left; x < left + mask[i + 1]; x++) {
        const column = Math.floor(((x + 0.5) * prediction.width) / width);
        counts[prediction.codes[y * prediction.width + column]]++;
      }
    }
    return counts.indexOf(Math.max(...counts));
  }

  /* The alarms of a frame at a threshold that was not recorded, as its map on the page shows them,
     with the reasons of the recorded alarm that each lies on. */
  async function alarmsOf(index, { score, threshold }) {
    const map = await maps.get(table.place(index), score);
    const size = table.size(index);
    const smallest = regions.smallestRegion(score);
    const { found } = regions.flaggedIn(map, score, threshold, size, smallest);
    const isWhole = regions.isWhole(map, score, threshold, size);
    if (!found.length) return { alarms: [], regions: 0, isWhole };
    const predicted = table.has(index, "prediction");
    const prediction = predicted ? await maps.get(table.place(index), "prediction") : null;
    const known = score === page.ranking ? recorded.filter((alarm) => alarm.index === index) : [];
    const strongest = found.sort((a, b) => b.strength - a.strength).slice(0, A_FRAME);
    const alarms = strongest.map((piece) => {
      const same = known.find((alarm) => overlap(alarm.box, piece.box) >= 0.5);
      return {
        index,
        frame: table.name(index),
        box: piece.box,
        area: piece.area,
        strength: piece.strength,
        peak: piece.peak,
        values: { ...same?.values, [score]: piece.value },
        class_id: classOf(regions.maskOf(piece, map, size), prediction, size),
        reasons: same?.reasons ?? {},
        event: null,
      };
    });
    return { alarms, regions: found.length, isWhole };
  }

  /* Read the maps of all frames whose maximum reaches the threshold; null where another threshold
     has been set meanwhile. */
  async function readAlarms(wanted) {
    const mine = ++token;
    const { score, threshold } = wanted;
    const indices = [...frames.keys()].filter((index) => {
      const highest = table.value(index, score, "max");
      return table.has(index, score) && (highest === null || highest >= threshold);
    });
    const found = [];
    let count = 0;
    let unread = 0;
    let isWhole = true;
    for (let first = 0; first < indices.length; first += AT_ONCE) {
      note.textContent = `reading the maps: ${first} of ${indices.length} frames`;
      const part = indices.slice(first, first + AT_ONCE);
      const read = await Promise.allSettled(part.map((index) => alarmsOf(index, wanted)));
      if (mine !== token) return null;
      for (const result of read) {
        if (result.status === "fulfilled") {
          found.push(...result.value.alarms);
          count += result.value.regions;
          isWhole &&= result.value.isWhole;
        } else unread++;
      }
    }
    found.sort((a, b) => b.strength - a.strength);
    return { alarms: found, regions: count, unread, isWhole };
  }

  const isRecorded = ({ score, threshold }) =>
    score === page.ranking && threshold === table.recordedThreshold(score);

  /* The alarms that come with the page. */
  function ofRecorded() {
    const flagged = frames.reduce((sum, frame) => sum + frame.regions, 0);
    return { alarms: recorded, regions: flagged, unread: 0, isWhole: true };
  }

  /* List the alarms at the threshold that is set, or else at the recorded one. */
  async function refresh() {
    const now = state.get();
    const wanted = { score: now.score, threshold: now.score && table.thresholdOf(now) };
    const key = JSON.stringify(wanted);
    if (key === stamp) return;
    stamp = key;
    token++; // what is still being read is of another threshold
    listing = { ...wanted, alarms: [], regions: 0, unread: 0, isWhole: true };
    choose();
    if (wanted.threshold === null) return;
    const found = isRecorded(wanted) ? ofRecorded() : await readAlarms(wanted);
    if (found === null) return;
    listing = { ...wanted, ...found };
    choose();
  }

  /* Show every alarm, or one of each event. */
  function choose() {
    const ofEvents = events.length > 0 && isRecorded(listing);
    const disputed = controls.disputed.checked;
    const once = ofEvents && controls.once.checked && !disputed;
    const isShown = (alarm) => !once || alarm.event === null || leaders.get(alarm.event) === alarm;
    const chosen = listing.alarms.filter(disputed ? isDisputed : isShown);
    shown = chosen.slice(0, MOST);
    // A reviewer who comes back goes on where the verdicts end. If all alarms have one, that is the
    // end of the list, where a key replaces no verdict.
    const first = firstOpen();
    at = first < 0 ? shown.length : first;
    controls.onceLabel.hidden = !ofEvents;
    inSight.disconnect();
    list.replaceChildren(...shown.map(row));
    for (const item of list.children) inSight.observe(item);
    drawRest();
    if (disputed) describeDisputed(chosen.length);
    else describe(once, chosen.length);
    describeProgress();
    showControls();
  }

  function describe(once, total) {
    const { score, threshold, alarms } = listing;
    if (score === null) note.textContent = "The maps hold no score, so there are no alarms.";
    else if (threshold === null) {
      note.textContent = `The maps record no threshold of ${layers.name(score)}. Set one above.`;
    } else {
      const of = once
        ? `${total} ${total === 1 ? "event" : "events"}: alarms that are followed over frames, ` +
          "each at its peak; of "
        : "";
      const rest = total > MOST ? `, of which the strongest ${MOST} are listed` : "";
      const flagged = listing.regions;
      const more = flagged > alarms.length;
      const count = more ? `${alarms.length} of ${flagged}` : alarms.length;
      const from = thresholdText(threshold);
      const word = count === 1 ? "region" : "regions";
      const shrunk = listing.isWhole ? "" : `, ${regions.SHRUNK}`;
      const words = `${of}${count} ${word} of ${layers.name(score)} ≥ ${from}${shrunk}`;
      const others = more ? " Open a frame to judge its other regions." : "";
      const smallest = regions.smallestRegion(score);
      const decades = shown.some(({ reasons }) => reasons.parts)
        ? " 3 decades: one in 1,000 pixels of normal scenes reaches as much."
        : "";
      note.textContent = total
        ? `${words}, at most ${A_FRAME} a frame and of at least ${smallest} pixels, ` +
          `the strongest first${rest}.${others}${decades}`
        : nothingWords(score, threshold, smallest);
      note.textContent += unreadWords();
    }
  }

  /* How many alarms there are on which reviewers disagree, where these alone are listed. */
  function describeDisputed(total) {
    const { score, threshold, alarms } = listing;
    if (threshold === null) {
      describe(false, total);
      return;
    }
    const of = `${alarms.length} alarms of ${layers.name(score)} ≥ ${thresholdText(threshold)}`;
    const hidden = verdicts.blind() ? " Alarms of frames that you have not judged are hidden." : "";
    const others = " The gallery shows frames with other regions on which they disagree.";
    note.textContent = `Reviewers disagree on ${total} of ${of}.${hidden}${others}` + unreadWords();
  }

  /* That maps could not be read, so their alarms are missing. */
  function unreadWords() {
    const { unread } = listing;
    if (!unread) return "";
    const subject = unread === 1 ? "The map of 1 frame" : `The maps of ${unread} frames`;
    return ` ${subject} could not be read, so alarms are missing here.`;
  }

  /* Why the list is empty, and what would fill it. */
  function nothingWords(score, threshold, smallest) {
    const name = layers.name(score);
    const from = thresholdText(threshold);
    const none = `No region of ${name} ≥ ${from} has at least ${smallest} pixels.`;
    const highest = table.highest(score);
    if (highest === null) return none;
    const value = digits(highest, 3);
    return `${none} The highest ${name} of all frames is ${value}. A lower threshold lists more.`;
  }

  /* Whether reviewers disagree on an alarm, as far as the verdicts of others may be seen. */
  function isDisputed(alarm) {
    const said = [entryOf(alarm), ...othersOn(alarm)].map((entry) => entry?.verdict);
    return new Set(said.filter(Boolean)).size > 1;
  }

  const isJudged = (alarm) => Boolean(entryOf(alarm)?.verdict);

  /* How many of the listed alarms the reviewer has judged. */
  function describeProgress() {
    const judged = shown.filter(isJudged).length;
    progress.hidden = !shown.length;
    progress.textContent = `${judged} of ${shown.length} alarms judged`;
    listEnd.hidden = !shown.length;
    listEnd.firstElementChild.textContent = endWords();
    for (const button of controls.open) button.hidden = judged === shown.length;
    // Before the first verdict, the list begins where the button would lead.
    controls.open[0].hidden ||= judged === 0;
  }

  /* What is left to judge, as the end of the list says it. */
  function endWords() {
    const total = shown.length;
    const left = shown.filter((alarm) => !isJudged(alarm)).length;
    if (left) {
      const have = left === 1 ? "has" : "have";
      return `This is the end of the list. ${left} of ${total} alarms ${have} no verdict yet.`;
    }
    return total === 1 ? "The only alarm has a verdict." : `All ${total} alarms have a verdict.`;
  }

  /* What the regions of an exported file would change in the bank of features, as
     verdict_features.py counts them: {enter, stay, disputed, others, hidden}. Regions are counted
     once, however many reviewers judged them; what one calls false and another true or missed stays
     out. `hidden` verdicts of others do not count: the numbers would tell them. */
  function countLearning() {
    const own = verdicts.reviewer();
    const isOther = ({ reviewer }) => own === null || reviewer !== own;
    const isHidden = (entry) => isOther(entry) && !verdicts.revealed(entry.frame);
    const judged = verdicts.all().filter(({ region, verdict }) => region && verdict);
    const seen = judged.filter((entry) => !isHidden(entry));
    const keysOf = (...kinds) => {
      const entries = seen.filter(({ verdict }) => kinds.includes(verdict));
      return new Set(
        entries.map(({ frame, region }) => JSON.stringify([frame, region.score, region.box])),
      );
    };
    const calledFalse = keysOf("false-alarm");
    const stay = keysOf("true-alarm", "missed");
    const disputed = [...calledFalse].filter((key) => stay.has(key)).length;
    return {
      enter: calledFalse.size - disputed,
      stay: stay.size,
      disputed,
      others: seen.filter(isOther).length,
      hidden: judged.length - seen.length,
    };
  }

  /* How many false alarms would enter the bank of features, by the verdicts that may be seen. */
  function enteringWords(enter, others, hidden) {
    const count = enter || "no";
    const alarms = enter > 1 ? "alarms" : "alarm";
    const words = `${count} false ${alarms} will enter the bank of features`;
    const from = others ? ", counted with the verdicts of other reviewers" : "";
    if (hidden) return `By the verdicts that you may see, ${words}${from}.`;
    return `${words[0].toUpperCase()}${words.slice(1)}${from}.`;
  }

  /* What verdicts on regions would change in the bank of features. */
  function describeLearning() {
    const { enter, stay, disputed, others, hidden } = countLearning();
    learning.hidden = !page.bank || !(enter || disputed);
    if (learning.hidden) return;
    const words = [enteringWords(enter, others, hidden)];
    if (stay) {
      const but = disputed ? `; reviewers disagree on ${disputed} of them` : "";
      words.push(
        `${stay} called true or part of a miss ${stay === 1 ? "stays" : "stay"} out${but}.`,
      );
    }
    if (hidden) {
      const are =
        hidden === 1
          ? "1 verdict of another reviewer is"
          : `${hidden} verdicts of other reviewers are`;
      words.push(`${are} hidden until you judge the frame; the exported file holds them, too.`);
    }
    words.push("Export the verdicts as JSON; this command says which other alarms go:");
    const command =
      "segunc finetune --method features --base MODEL --features.verdicts FILE " +
      "--features.maps MAPS --features.changes changes.html --out NEW";
    learning.replaceChildren(element("span", {}, words.join(" ")), element("code", {}, command));
  }

  /* The filter of alarms on which reviewers disagree, offered where there are some. */
  function showDisputed() {
    const count = listing.alarms.filter(isDisputed).length;
    controls.disputedWords.textContent = `only where reviewers disagree (${count})`;
    controls.disputedLabel.hidden = !count && !controls.disputed.checked;
  }

  function showControls() {
    showDisputed();
    const { score, threshold } = listing;
    const known = score && table.recordedThreshold(score);
    const { number, back } = controls;
    if (document.activeElement !== number) {
      number.value = threshold === null ? "" : thresholdText(threshold);
    }
    back.textContent = `Back to the recorded ${thresholdText(known)}`;
    back.hidden = known === null || threshold === known;
  }

  function openButton() {
    const attributes = { type: "button", onclick: () => focusOn(firstOpen()) };
    return element("button", attributes, "To the first without a verdict");
  }

  function build() {
    controls.number = element("input", {
      type: "number",
      step: "any",
      id: "alarm-threshold",
      oninput: () => {
        const { value } = controls.number;
        state.set({ threshold: value === "" ? null : Number(value) });
      },
    });
    controls.back = element("button", {
      type: "button",
      id: "alarm-recorded",
      onclick: () => state.set({ threshold: null }),
    });
    controls.once = element("input", {
      type: "checkbox",
      id: "alarm-once",
      checked: events.length > 0,
      onchange: choose,
    });
    const words = element("span", {}, "one alarm for each event");
    controls.onceLabel = element("label", { class: "check" }, controls.once, words);
    controls.disputed = element("input", {
      type: "checkbox",
      id: "alarm-disputed",
      onchange: choose,
    });
    controls.disputedWords = element("span");
    controls.disputedLabel = element(
      "label",
      { class: "check" },
      controls.disputed,
      controls.disputedWords,
    );
    const threshold = element("label", { class: "row" }, "Threshold", controls.number);
    const tools = element(
      "div",
      { class: "row wrap" },
      threshold,
      controls.back,
      controls.onceLabel,
      controls.disputedLabel,
    );
    // Above the list, and at its end.
    controls.open = [openButton(), openButton()];
    const counted = element("div", { class: "row wrap" }, progress, controls.open[0]);
    listEnd.append(element("span"), controls.open[1]);
    document
      .getElementById("alarms-view")
      .append(tools, note, counted, drawingNote, learning, list, listEnd);
  }

  const STEPS = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, Home: -Infinity, End: Infinity };

  function onKey(event) {
    const step = STEPS[event.key];
    if (step === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const focused = document.activeElement.closest("#alarm-list li");
    const from = focused ? [...list.children].indexOf(focused) : at;
    focusOn(Math.min(shown.length - 1, from + step));
  }

  function start() {
    build();
    list.addEventListener("keydown", onKey);
    listEnd.addEventListener("keydown", onKey);
    verdicts.onChange(() => {
      [...list.children].forEach((item, i) => showVerdict(item, shown[i]));
      describeProgress();
      showDisputed();
      describeLearning();
    });
    describeLearning();
  }

  /* A slider that moves sets many thresholds; the maps are read for the last. */
  function update(current, changed) {
    if (current.view !== "alarms") return;
    clearTimeout(timer);
    if (changed.has("view")) {
      refresh();
      drawRest();
      openList();
    } else timer = setTimeout(refresh, PAUSE);
  }

  segunc.alarms = {
    start,
    update,
    judge,
    writeNote,
    numberOf,
    nextOpen,
    focusOn: openList,
    leaders,
    openRecorded,
  };
})(segunc);
