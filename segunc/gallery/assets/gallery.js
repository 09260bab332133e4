"use strict";
/* The gallery, and above it sort, search, filters, the threshold and the legend of the score. A
   card is filled when it comes in sight, so ten thousand frames scroll as ten do. */
(function (segunc) {
  const { element, table, state, verdicts, layers, thresholdText, seconds } = segunc;
  const { frames } = segunc.data;
  const FIRST = 24; // cards that are filled at once
  const MOST_PRINTED = 500; // cards that are filled for a printer
  const scroller = document.getElementById("scroller");
  const list = document.getElementById("cards");
  const empty = document.getElementById("empty");
  const unprinted = element("p", { id: "unprinted" });
  const STATISTIC_WORDS = {
    region: "strongest region",
    mean: "mean",
    p99: "99th percentile",
    max: "maximum",
    component: "largest region, pixels",
  };
  const NEEDS_THRESHOLD = ["flagged", "below", "found", "missed"];
  const controls = {};
  let order = []; // as shown
  let rest = []; // with what its moments hide
  let members = new Map(); // first frame of a moment -> its others
  let focused = 0;
  let stamp = "";
  let stale = false; // verdicts have changed since the cards were made
  let lastFrame = null; // that was looked at, whose card has the focus on the way back

  /* Of a score the words say from which value on a pixel belongs to a region. */
  function statisticWords(name, score = null) {
    const from = name === "component" && score ? table.recordedThreshold(score) : null;
    if (from === null) return STATISTIC_WORDS[name] ?? name;
    return `pixels of the largest region ≥ ${thresholdText(from)}:`;
  }

  const short = (statistic, value) =>
    table.inUnit(statistic) ? segunc.digits(value, 4) : segunc.compact(value);

  /* What a frame has of the statistic that ranks it: of its strongest region peak and area, since
     the sum that orders them means nothing to a reader; null for nothing. Regions are those of the
     recorded threshold, which is named where another one is set or nothing reaches it. */
  function statisticOf(index, { statistic, score, threshold }) {
    if (statistic === "region") {
      const region = table.strongest(index, score);
      const recorded = table.recordedThreshold(score);
      const from = recorded === null ? "" : ` ≥ ${thresholdText(recorded)}`;
      if (!region) {
        if (table.value(index, score, "region") === null) return null;
        const highest = table.value(index, score, "max");
        const most = highest === null ? "" : `, highest ${segunc.digits(highest, 3)}`;
        const smallest = segunc.regions.smallestRegion(score);
        const size = smallest > 1 ? ` of ${smallest} px` : "";
        return `no region${size}${from}${most}`;
      }
      const area = `${region.area.toLocaleString("en")} px`;
      const isOther = threshold !== null && threshold !== recorded;
      return `peak ${segunc.digits(region.peak, 3)} · ${area}${isOther ? from : ""}`;
    }
    const value = table.value(index, score, statistic);
    if (value === null) return null;
    return `${statisticWords(statistic, score)} ${short(statistic, value)}`;
  }

  function select(field, label, options) {
    const choices = options.map(([value, words]) => element("option", { value }, words));
    const onchange = () => change(field, controls[field].value);
    controls[field] = element("select", { id: `filter-${field}`, onchange }, ...choices);
    return element("label", {}, label, controls[field]);
  }

  function change(field, value) {
    if (field !== "score") {
      state.set({ [field]: value });
      return;
    }
    // A threshold has the unit of its score.
    const now = state.get();
    const statistic = table.usual(value, now.statistic);
    const layer = now.layer === "overlay" ? "overlay" : value;
    state.set({ score: value, statistic, threshold: null, layer });
  }

  /* Which frames are shown: above every other filter. */
  function mainFilters() {
    controls.search = element("input", {
      type: "search",
      id: "search",
      placeholder: "part of a name",
      oninput: () => state.set({ search: controls.search.value }),
    });
    const shown = Object.keys(table.SHOW).filter(offered);
    const kinds = [
      ["all", "any"],
      ["none", "not judged yet"],
      ...Object.entries(verdicts.WORDS),
      ["note", "with a note"],
      ["disagree", disagreeWords()],
    ];
    return [
      element("label", {}, "Search", controls.search),
      select(
        "show",
        "Show",
        shown.map((name) => [name, showWords(name)]),
      ),
      select("verdict", "Verdict", kinds),
    ];
  }

  /* By what they are ranked. */
  function rankingFilters() {
    const filters = [select("order", "Order", Object.entries(table.ORDERS))];
    if (table.scores.length) {
      const scores = table.scores.map((name) => [name, layers.name(name)]);
      const statistics = [...new Set(table.scores.flatMap(table.statisticsOf))];
      const ranked = statistics.map((name) => [name, statisticWords(name)]);
      filters.unshift(select("score", "Score", scores), select("statistic", "Ranked by", ranked));
    }
    if (table.hasMoments) {
      const moments = [
        ["one", "its first in this order"],
        ["all", "all frames"],
      ];
      filters.push(select("moments", "Of each moment", moments));
    }
    return filters;
  }

  function thresholdFilter() {
    controls.threshold = element("input", {
      type: "number",
      step: "any",
      id: "gallery-threshold",
      oninput: () => {
        const { value } = controls.threshold;
        state.set({ threshold: value === "" ? null : Number(value) });
      },
    });
    return element("label", {}, "Threshold", controls.threshold);
  }

  function build() {
    const form = document.getElementById("filters");
    form.addEventListener("submit", (event) => event.preventDefault());
    controls.legend = element("div", { id: "gallery-legend" });
    controls.count = element("p", { id: "count", role: "status" });
    const more = element("div", { id: "more-filters" }, ...rankingFilters());
    if (table.scores.length) more.append(thresholdFilter());
    more.append(controls.legend);
    controls.more = element(
      "button",
      { type: "button", id: "more", "aria-expanded": "false", "aria-controls": "more-filters" },
      "Order and threshold",
    );
    controls.more.addEventListener("click", () => {
      const open = form.classList.toggle("open");
      controls.more.setAttribute("aria-expanded", String(open));
    });
    form.replaceChildren(...mainFilters(), controls.more, more, controls.count);
    showOptions();
  }

  /* Filters that no frame of this page could pass are not offered. Labels that are hidden now
     count, because they are seen once their frames are judged. */
  function offered(name) {
    if (name === "flagged" || name === "below") return table.scores.length > 0;
    if (name === "found" || name === "missed") {
      return frames.some(({ found }) => Object.keys(found).length);
    }
    if (name === "normal") return frames.some(({ objects }) => objects === 0);
    if (name === "unlabelled") {
      return table.everHas("label/anomaly") && frames.some(({ objects }) => objects === null);
    }
    return frames.some((_, index) => table.SHOW[name][1](index, state.get()));
  }

  const isOfLabels = (name) => ["found", "missed", "normal", "unlabelled"].includes(name);
  const anyRevealed = () => frames.some(({ name }) => verdicts.revealed(name));

  /* What a filter shows; one by labels passes judged frames alone where the others are hidden. */
  function showWords(name) {
    const [words] = table.SHOW[name];
    if (!isOfLabels(name) || !verdicts.blind()) return words;
    return `${words} (${anyRevealed() ? "judged frames" : "judge a frame first"})`;
  }

  /* Disagreement is seen where the verdicts of others are. */
  function disagreeWords() {
    return verdicts.blind() ? "reviewers disagree (judged frames)" : "reviewers disagree";
  }

  function showOptions() {
    const disagree = [...controls.verdict.options].find(({ value }) => value === "disagree");
    disagree.textContent = disagreeWords();
    for (const option of controls.show.options) {
      option.textContent = showWords(option.value);
      option.disabled = isOfLabels(option.value) && !anyRevealed();
    }
  }

  function showControls(current, changed) {
    for (const field of ["score", "statistic", "order", "moments", "show", "verdict", "search"]) {
      const value = current[field] ?? "";
      if (controls[field] && controls[field].value !== value) controls[field].value = value;
    }
    if (controls.moments) controls.moments.disabled = current.order === "source";
    if (controls.threshold) showThreshold(current);
    if (changed.has("score") && current.score) {
      controls.legend.replaceChildren(layers.scoreLegend(current.score));
    }
  }

  function showThreshold({ score, threshold }) {
    const input = controls.threshold;
    const recorded = table.recordedThreshold(score);
    input.placeholder = recorded === null ? "none" : `recorded ${thresholdText(recorded)}`;
    // The reader may be in the middle of typing "0.0".
    const typed = input.value === "" ? null : Number(input.value);
    if (typed !== threshold && document.activeElement !== input) input.value = threshold ?? "";
  }

  /* How many frames the filter of disagreements passes over, because the verdicts are hidden. */
  function hiddenWords({ verdict }) {
    const hidden = verdict === "disagree" ? verdicts.hiddenDisputes() : 0;
    if (!hidden) return [];
    const are = hidden === 1 ? "is" : "are";
    return [`${hidden} more ${are} hidden until you judge the frame as a whole`];
  }

  function showCount(shown, current, moments) {
    const words = [];
    if (moments < shown) words.push(`${moments} moment${moments === 1 ? "" : "s"}`);
    words.push(`${shown} of ${table.count} frames`);
    const threshold = table.thresholdOf(current);
    const counts = current.threshold !== null || NEEDS_THRESHOLD.includes(current.show);
    if (counts && threshold !== null) words.push(`threshold ${thresholdText(threshold)}`);
    const highest = table.highest(current.score);
    if (threshold !== null && highest !== null && highest < threshold) {
      const name = layers.name(current.score);
      words.push(
        `nothing reaches ${name} ${thresholdText(threshold)}; highest ${segunc.digits(highest, 3)}`,
      );
    }
    words.push(...hiddenWords(current));
    const missing = NEEDS_THRESHOLD.includes(current.show) && threshold === null;
    controls.count.textContent = missing ? "Give a threshold for this filter." : words.join(", ");
    showEmpty(shown, current, missing);
  }

  /* Why no frame is shown, and the way back. */
  function showEmpty(shown, { search, show, verdict }, missing) {
    empty.hidden = shown > 0;
    if (shown) return;
    let hidden = "";
    if (isOfLabels(show) && verdicts.blind()) {
      hidden = " Labels of frames that you have not judged are hidden.";
    } else if (verdict === "disagree" && frames.some(({ name }) => !verdicts.revealed(name))) {
      hidden =
        " Verdicts of others on frames that you have not judged are hidden, so the filter passes " +
        "over these frames. A verdict on a region does not reveal its frame.";
    }
    const words = search.trim()
      ? `No frame with “${search.trim()}” in its name passes these filters.`
      : `No frame passes these filters.${hidden}`;
    const reset = () => {
      state.set({ search: "", show: "all", verdict: "all" });
      controls.search.focus();
    };
    empty.replaceChildren(
      element("p", {}, missing ? "This filter needs a threshold." : words),
      element("button", { type: "button", id: "reset", onclick: reset }, "Show all frames"),
    );
  }

  const columns = () => getComputedStyle(list).gridTemplateColumns.split(" ").length;
  const rowHeight = () => (list.querySelector("li")?.offsetHeight ?? 1) + 14;

  function refresh(keepScroll) {
    const current = state.get();
    const hadFocus = list.contains(document.activeElement);
    const grouped = current.moments === "one" && current.order !== "source";
    rest = table.select(current, verdicts);
    order = rest;
    members = new Map();
    if (grouped) [order, members] = table.moments(rest, table.index(current.opened));
    showCount(rest.length, current, grouped ? members.size : rest.length);
    if (!keepScroll) {
      scroller.scrollTop = 0;
      focused = 0;
    }
    stale = false;
    inSight.disconnect();
    const cards = order.map((_, position) =>
      element("li", {
        "aria-posinset": position + 1,
        "aria-setsize": order.length,
        "data-position": position,
      }),
    );
    list.replaceChildren(...cards);
    for (const card of cards) inSight.observe(card);
    const first = Math.floor(scroller.scrollTop / rowHeight()) * columns();
    cards.slice(first, first + FIRST).forEach(fill);
    if (hadFocus) focusOn(focused);
  }

  const inSight = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) if (isIntersecting) fill(target);
    },
    { root: scroller, rootMargin: "600px" },
  );

  function fill(card) {
    if (card.firstChild) return;
    const position = Number(card.dataset.position);
    const index = order[position];
    const current = state.get();
    const name = table.name(index);
    const link = element("a", {
      href: `#view=frame&frame=${encodeURIComponent(name)}`,
      tabindex: position === focused ? 0 : -1,
    });
    const title = element("span", { class: "name" }, name);
    link.append(picturesOf(index, current), title, facts(index, current));
    card.append(link);
    const more = members.get(index)?.length;
    if (more) card.append(momentButton(name, more, current.opened === name));
    else if (isMember(index, current)) card.classList.add("member");
    card.append(noteButton(name));
  }

  /* Fill the cards that a printer gets, in sight or not; a line says how many it does not get. */
  function fillForPrint() {
    const cards = [...list.children];
    cards.slice(0, MOST_PRINTED).forEach(fill);
    const left = cards.filter((card) => !card.firstChild).length;
    unprinted.textContent = left
      ? `${left} of ${cards.length} cards are not printed. Filters print fewer frames at a time.`
      : "";
  }

  function noteButton(name) {
    const attributes = {
      type: "button",
      class: "write-note",
      tabindex: "-1",
      "aria-label": `Note on frame ${name}`,
      title: "Write a note on the frame (e)",
      onclick: (event) => {
        event.stopPropagation();
        writeNoteOn(name);
      },
    };
    return element("button", attributes, "✎ Note");
  }

  /* Whether a frame is shown because its moment is opened. */
  function isMember(index, { opened }) {
    return opened !== null && Boolean(members.get(table.index(opened))?.includes(index));
  }

  function momentButton(name, more, open) {
    const attributes = {
      type: "button",
      class: "moment",
      "aria-expanded": String(open),
      tabindex: "-1",
      title: "Show or hide the other frames of this moment (x)",
      onclick: (event) => {
        event.stopPropagation();
        toggleMoment(name);
      },
    };
    return element("button", attributes, open ? `− ${more}` : `+ ${more} of this moment`);
  }

  function picturesOf(index, { score }) {
    const pictures = element("span", { class: "pictures" });
    if (table.has(index, "image")) pictures.append(thumbnail(index, "image", "image"));
    if (score && table.has(index, score)) {
      pictures.append(thumbnail(index, score, `${layers.name(score)} map`));
    }
    if (!pictures.children.length) {
      pictures.append(element("span", { class: "nothing" }, "no picture"));
    }
    return pictures;
  }

  function thumbnail(index, content, words) {
    const folder = table.folder(index);
    const src = `thumbnails/${folder}/${encodeURIComponent(table.thumbnail(index, content))}`;
    const onerror = () => askWhetherOutdated(`frames/${folder}/${content}`);
    return element("img", { src, alt: words, decoding: "async", draggable: "false", onerror });
  }

  /* A thumbnail that is not there may be one of a page in whose place another was written: a script
     of the frame tells it. One such script is enough. */
  let asked = false;
  function askWhetherOutdated(key) {
    if (asked) return;
    asked = true;
    segunc.load(key).catch(() => {}); // it tells by an event
  }

  /* Where a value lies in the fixed range of its score. */
  function meter(value, score) {
    const bar = element("b");
    const share = Math.min(1, Math.max(0, layers.shareOf(score, value)));
    bar.style.width = `${100 * share}%`;
    return element("i", { class: "meter", "aria-hidden": "true" }, bar);
  }

  function badge(kind, title, words) {
    return element("span", { class: `badge ${kind}`, title }, words);
  }

  function facts(index, current) {
    const line = element("span", { class: "facts" });
    const opinions = verdicts.opinions(table.name(index));
    const several = new Set(opinions.map(({ reviewer }) => reviewer)).size > 1;
    const words = current.score ? statisticOf(index, current) : null;
    if (words !== null) line.append(element("span", { class: "value" }, words));
    const value = current.score ? table.ranked(index, current) : null;
    // Two verdicts take the room.
    const wide = !several && value !== null && table.inUnit(current.statistic);
    if (wide) line.append(meter(value, current.score));
    const time = table.time(index);
    if (time !== null) line.append(element("span", { class: "faint" }, seconds(time)));
    if (!several && table.objects(index)) line.append(objectsBadge(index, current));
    for (const opinion of opinions) line.append(...opinionBadges(opinion, several));
    if (table.problems(index).length) line.append(badge("problem", null, "incomplete"));
    return line;
  }

  /* What the threshold does to the labelled objects, each of which counts. */
  function objectsBadge(index, current) {
    const count = table.objects(index);
    const noun = `labelled ${table.specks(index) ? "speck" : "object"}${count === 1 ? "" : "s"}`;
    const { smallest } = segunc.data.page.objects;
    const size = table.specks(index) ? ` (under ${smallest} px)` : "";
    const title = "what the threshold does to the labelled anomaly";
    const objects = current.score ? table.flaggedObjects(index, current) : null;
    if (!objects) return badge("machine", title, `${count} ${noun}${size}`);
    const words = `${objects.flagged} of ${objects.of} ${noun}${size} flagged`;
    return badge(`machine ${table.outcome(index, current)}`, title, words);
  }

  function opinionBadges({ reviewer, verdict, note, derived }, several) {
    const who = several ? `${reviewer || "no name"}: ` : "";
    const badges = [];
    if (verdict) {
      const by = reviewer || "a reviewer without a name";
      const title = `${derived ? "gravest verdict on a region, by" : "verdict of"} ${by}`;
      const words = derived ? `a region: ${derived}` : verdicts.WORDS[verdict];
      badges.push(badge(`person ${verdict}`, title, who + words));
    }
    if (note) badges.push(badge("", null, `${who}note`));
    return badges;
  }

  /* Move the focus to a card, which is brought into sight. */
  function focusOn(position) {
    if (!order.length) return;
    list.children[focused]?.querySelector("a")?.setAttribute("tabindex", "-1");
    focused = Math.min(order.length - 1, Math.max(0, position));
    const card = list.children[focused];
    fill(card);
    card.scrollIntoView({ block: "nearest" });
    const link = card.querySelector("a");
    link.setAttribute("tabindex", "0");
    link.focus({ preventScroll: true });
  }

  /* Write the note on the frame of the card that has the focus. */
  function writeNote() {
    if (!list.contains(document.activeElement) || focused >= order.length) {
      segunc.announce("no frame is chosen: the arrows lead to one", true);
      return;
    }
    writeNoteOn(table.name(order[focused]));
  }

  function writeNoteOn(name) {
    // A filter by notes may have taken the card away meanwhile.
    segunc.notes.open(name, () => focusOn(cardOf(name) ?? focused));
  }

  /* The card that a key of the arrows and pages leads to; null for any other key. */
  function targetOf(key) {
    if (key === "Home") return 0;
    if (key === "End") return order.length - 1;
    const across = columns();
    const sheet = Math.max(1, Math.floor(scroller.clientHeight / rowHeight())) * across;
    const steps = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: across,
      ArrowUp: -across,
      PageDown: sheet,
      PageUp: -sheet,
    };
    return Object.hasOwn(steps, key) ? focused + steps[key] : null;
  }

  function onKey(event) {
    const target = targetOf(event.key);
    if (target === null || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    focusOn(target);
  }

  function onClick(event) {
    const card = event.target.closest("li");
    // A new tab, by the address alone.
    if (!card || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    focused = Number(card.dataset.position);
    const whole = { zoom: 1, x: 0.5, y: 0.5, probe: null, region: null };
    state.set({ view: "frame", frame: table.name(order[focused]), ...whole });
  }

  function start() {
    build();
    const [height, width] = table.count ? (table.size(0) ?? [1, 2]) : [1, 2];
    const pictures = table.everHas("image") && table.scores.length ? 2 : 1;
    list.style.setProperty("--shape", `${pictures * width} / ${height}`);
    list.addEventListener("keydown", onKey);
    list.addEventListener("focusin", ({ target }) => {
      const card = /** @type {Element} */ (target).closest("li");
      if (card) focused = Number(card.dataset.position);
    });
    list.addEventListener("click", onClick);
    scroller.append(unprinted);
    addEventListener("beforeprint", () => {
      if (state.get().view === "gallery") fillForPrint();
    });
    // The order stays while a frame is looked at, so that "next" keeps its meaning while verdicts
    // are given.
    verdicts.onChange(() => {
      showOptions();
      stale = true;
      if (state.get().view === "gallery") refresh(true);
    });
  }

  function toggleMoment(name) {
    state.set({ opened: state.get().opened === name ? null : name });
  }

  /* Where a frame's card is, or that of the moment that hides it; null where a filter does. */
  function cardOf(frame) {
    const index = table.index(frame);
    if (index === null) return null;
    if (order.includes(index)) return order.indexOf(index);
    for (const [head, others] of members) {
      if (others.includes(index)) return order.indexOf(head);
    }
    return null;
  }

  const FIELDS = [
    "score",
    "statistic",
    "order",
    "moments",
    "opened",
    "search",
    "show",
    "verdict",
    "threshold",
  ];

  function update(current, changed) {
    showControls(current, changed);
    const key = JSON.stringify(FIELDS.map((field) => current[field]));
    if (current.view === "frame") lastFrame = current.frame;
    if (current.view !== "gallery" && stamp) return; // it is made anew when it is seen
    if (key !== stamp) {
      stamp = key;
      refresh(changed.size === 1 && changed.has("opened"));
    } else if (stale) refresh(true);
    if (changed.has("view")) comeBack();
  }

  /* Give the focus to the card of the frame that was looked at. */
  function comeBack() {
    const position = lastFrame === null ? null : cardOf(lastFrame);
    if (position !== null) focusOn(position);
    lastFrame = null;
  }

  segunc.gallery = {
    start,
    update,
    statisticWords,
    statisticOf,
    short,
    /* The frame of the card that has the focus, or null. */
    focusedFrame: () => {
      const has = list.contains(document.activeElement) && focused < order.length;
      return has ? table.name(order[focused]) : null;
    },
    writeNote,
    toggleMoment: () => {
      const index = order[focused];
      if (members.get(index)?.length) toggleMoment(table.name(index));
    },
    /* As shown, with what its moments hide behind their first. */
    rest: () => rest,
    focusFirst: () => focusOn(focused),
    order: () => order,
  };
})(segunc);
