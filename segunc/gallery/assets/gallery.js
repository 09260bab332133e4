"use strict";
/* The gallery, and above it sort, search, filters, the threshold and the legend of the score. A
   card is filled when it comes in sight, so ten thousand frames scroll as ten do. */
(function (segunc) {
  const { element, table, state, verdicts, layers, format, seconds } = segunc;
  const { page, frames } = segunc.data;
  const FIRST = 24; // cards that are filled at once
  const scroller = document.getElementById("scroller"),
    list = document.getElementById("cards");
  const STATISTIC_WORDS = {
    region: "strongest region",
    mean: "mean",
    p99: "99th percentile",
    max: "maximum",
    component: "largest region, pixels",
  };
  const controls = {};
  let order = [],
    rest = [],
    // as shown; with what its moments hide; first frame of a moment -> its others
    members = new Map();
  let focused = 0,
    stamp = "",
    stale = false; // stale: verdicts have changed since the cards were made

  /* Of a score the words say from which value on a pixel belongs to a region. */
  function statisticWords(name, score = null) {
    const from = name === "component" && score ? page.scores[score].region_from : null;
    return from === null || from === undefined
      ? (STATISTIC_WORDS[name] ?? name)
      : `pixels of the largest region ≥ ${format(from)}:`;
  }

  const short = (statistic, value) =>
    table.inUnit(statistic) ? format(Number(value.toPrecision(4))) : segunc.compact(value);

  function select(field, label, options) {
    const box = element(
      "select",
      { id: `filter-${field}`, onchange: () => change(field, box.value) },
      ...options.map(([value, words]) => element("option", { value }, words)),
    );
    controls[field] = box;
    return element("label", {}, label, box);
  }

  function change(field, value) {
    // A threshold has the unit of its score.
    const statistic = table.usual(value, state.get().statistic);
    state.set(
      field === "score"
        ? { score: value, statistic, threshold: null, layer: value }
        : { [field]: value },
    );
  }

  function build() {
    const form = document.getElementById("filters");
    form.addEventListener("submit", (event) => event.preventDefault());
    controls.search = element("input", {
      type: "search",
      id: "search",
      placeholder: "part of a name",
      oninput: () => state.set({ search: controls.search.value }),
    });
    controls.threshold = element("input", {
      type: "number",
      step: "any",
      id: "gallery-threshold",
      placeholder: "none",
      oninput: () =>
        state.set({
          threshold: controls.threshold.value === "" ? null : Number(controls.threshold.value),
        }),
    });
    controls.legend = element("div", { id: "gallery-legend" });
    controls.count = element("p", { id: "count", role: "status" });
    const scored = table.scores.length > 0,
      statistics = [...new Set(table.scores.flatMap(table.statisticsOf))];
    const shown = Object.entries(table.SHOW).filter(([name]) => offered(name));
    form.replaceChildren(
      ...[
        element("label", {}, "Search", controls.search),
        scored &&
          select(
            "score",
            "Score",
            table.scores.map((name) => [name, layers.name(name)]),
          ),
        scored &&
          select(
            "statistic",
            "Ranked by",
            statistics.map((name) => [name, statisticWords(name)]),
          ),
        select("order", "Order", Object.entries(table.ORDERS)),
        table.hasMoments &&
          select("moments", "Of each moment", [
            ["one", "its first"],
            ["all", "all frames"],
          ]),
        select(
          "show",
          "Show",
          shown.map(([name, [words]]) => [name, words]),
        ),
        scored && element("label", {}, "Threshold", controls.threshold),
        select("verdict", "Verdict", [
          ["all", "any"],
          ["none", "not judged yet"],
          ...Object.entries(verdicts.WORDS),
          ["note", "with a note"],
          ["disagree", "reviewers disagree"],
        ]),
        controls.legend,
        controls.count,
      ].filter(Boolean),
    );
  }

  /* Filters that no frame of this page could pass are not offered. */
  function offered(name) {
    if (verdicts.blind() && ["found", "missed", "normal", "unlabelled"].includes(name))
      return false;
    if (name === "flagged" || name === "below") return table.scores.length > 0;
    if (name === "found" || name === "missed")
      return frames.some(({ found }) => Object.keys(found).length);
    if (name === "unlabelled" && !table.everHas("label/anomaly")) return false;
    return frames.some((_, index) => table.SHOW[name][1](index));
  }

  function showControls(current, changed) {
    for (const field of [
      "score",
      "statistic",
      "model",
      "order",
      "moments",
      "show",
      "verdict",
      "search",
    ]) {
      if (controls[field] && controls[field].value !== (current[field] ?? ""))
        controls[field].value = current[field] ?? "";
    }
    if (controls.moments) controls.moments.disabled = current.order === "source";
    // The reader may be in the middle of typing "0.0".
    if (
      Number(controls.threshold.value || NaN) !== current.threshold &&
      document.activeElement !== controls.threshold
    ) {
      controls.threshold.value = current.threshold ?? "";
    }
    if (changed.has("score") && current.score)
      controls.legend.replaceChildren(layers.scoreLegend(current.score));
  }

  function showCount(shown, current, moments) {
    const needs =
      ["flagged", "below", "found", "missed"].includes(current.show) && current.threshold === null;
    controls.count.textContent = needs
      ? "Give a threshold for this filter."
      : `${moments < shown ? `${moments} moments, ` : ""}${shown} of ${table.count} frames${current.threshold === null ? "" : `, threshold ${format(current.threshold)}`}`;
  }

  const columns = () => getComputedStyle(list).gridTemplateColumns.split(" ").length;
  const rowHeight = () => (list.firstChild?.offsetHeight ?? 1) + 14;

  function refresh(keepScroll) {
    const current = state.get(),
      hadFocus = list.contains(document.activeElement);
    const grouped = current.moments === "one" && current.order !== "source";
    rest = table.select(current, verdicts);
    [order, members] = grouped
      ? table.moments(rest, table.index(current.opened))
      : [rest, new Map()];
    showCount(rest.length, current, grouped ? members.size : rest.length);
    if (!keepScroll) {
      scroller.scrollTop = 0;
      focused = 0;
    }
    stale = false;
    inSight.disconnect();
    list.replaceChildren(
      ...order.map((_, position) =>
        element("li", {
          "aria-posinset": position + 1,
          "aria-setsize": order.length,
          "data-position": position,
        }),
      ),
    );
    for (const card of list.children) inSight.observe(card);
    const first = Math.floor(scroller.scrollTop / rowHeight()) * columns();
    [...list.children].slice(first, first + FIRST).forEach(fill);
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
    const position = Number(card.dataset.position),
      index = order[position],
      current = state.get(),
      name = table.name(index);
    const link = element("a", {
      href: `#view=frame&frame=${encodeURIComponent(name)}`,
      tabindex: position === focused ? 0 : -1,
    });
    const pictures = element("span", { class: "pictures" });
    if (table.has(index, "image")) pictures.append(thumbnail(index, "image", "image"));
    if (current.score && table.has(index, current.score))
      pictures.append(thumbnail(index, current.score, `${layers.name(current.score)} map`));
    if (!pictures.children.length)
      pictures.append(element("span", { class: "nothing" }, "no picture"));
    link.append(pictures, element("span", { class: "name" }, name), facts(index, current));
    card.append(link);
    const more = members.get(index)?.length;
    if (more) {
      const open = current.opened === name;
      card.append(
        element(
          "button",
          {
            type: "button",
            class: "moment",
            "aria-expanded": String(open),
            tabindex: "-1",
            title: "Show or hide the other frames of this moment (x)",
            onclick: (event) => {
              event.stopPropagation();
              toggleMoment(name);
            },
          },
          open ? `− ${more}` : `+ ${more} of this moment`,
        ),
      );
    } else if (current.opened !== null && members.get(table.index(current.opened))?.includes(index))
      card.classList.add("member");
  }

  function thumbnail(index, content, words) {
    return element("img", {
      src: `thumbnails/${table.folder(index)}/${encodeURIComponent(content)}.jpg`,
      alt: words,
      decoding: "async",
      draggable: "false",
    });
  }

  /* Where a value lies in the fixed range of its score. */
  function meter(value, score) {
    const bar = element("b");
    bar.style.width = `${100 * Math.min(1, Math.max(0, layers.shareOf(score, value)))}%`;
    return element("i", { class: "meter", "aria-hidden": "true" }, bar);
  }

  function facts(index, current) {
    const line = element("span", { class: "facts" });
    const opinions = verdicts.opinions(table.name(index)),
      several = new Set(opinions.map(({ reviewer }) => reviewer)).size > 1;
    const value = current.score ? table.ranked(index, current) : null;
    if (value !== null) {
      line.append(
        element(
          "span",
          { class: "value" },
          `${statisticWords(current.statistic, current.score)} ${short(current.statistic, value)}`,
        ),
      );
      if (table.inUnit(current.statistic) && !several) line.append(meter(value, current.score));
    }
    const time = table.time(index);
    if (time !== null) line.append(element("span", { class: "faint" }, seconds(time)));
    const objects = table.objects(index);
    if (objects && !several) {
      // two verdicts take the room
      const outcome = current.score ? table.outcome(index, current.score, current.threshold) : null;
      const words = { found: "label flagged", missed: "label not flagged" }[outcome];
      line.append(
        element(
          "span",
          {
            class: `badge machine ${outcome ?? ""}`,
            title: "what the threshold does to the labelled anomaly",
          },
          words ?? (objects === 1 ? "1 labelled object" : `${objects} labelled objects`),
        ),
      );
    }
    for (const { reviewer, verdict, note } of opinions) {
      const who = several ? `${reviewer || "no name"}: ` : "";
      if (verdict)
        line.append(
          element(
            "span",
            { class: `badge person ${verdict}`, title: "a reviewer's verdict" },
            who + verdicts.WORDS[verdict],
          ),
        );
      if (note) line.append(element("span", { class: "badge" }, `${who}note`));
    }
    if (table.problems(index).length)
      line.append(element("span", { class: "badge problem" }, "incomplete"));
    return line;
  }

  /* Move the focus to a card, which is brought into sight. */
  function focusOn(position) {
    if (!order.length) return;
    list.children[focused]?.firstChild?.setAttribute("tabindex", "-1");
    focused = Math.min(order.length - 1, Math.max(0, position));
    const card = list.children[focused];
    fill(card);
    card.scrollIntoView({ block: "nearest" });
    card.firstChild.setAttribute("tabindex", "0");
    card.firstChild.focus({ preventScroll: true });
  }

  function onKey(event) {
    const across = columns(),
      sheet = Math.max(1, Math.floor(scroller.clientHeight / rowHeight())) * across;
    const step = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: across,
      ArrowUp: -across,
      PageDown: sheet,
      PageUp: -sheet,
    }[event.key];
    const target =
      event.key === "Home"
        ? 0
        : event.key === "End"
          ? order.length - 1
          : step === undefined
            ? null
            : focused + step;
    if (target === null || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    focusOn(target);
  }

  function start() {
    build();
    const [height, width] = table.count ? (table.size(0) ?? [1, 2]) : [1, 2];
    list.style.setProperty(
      "--shape",
      `${(table.everHas("image") && table.scores.length ? 2 : 1) * width} / ${height}`,
    );
    list.addEventListener("keydown", onKey);
    list.addEventListener("focusin", (event) => {
      const card = event.target.closest("li");
      if (card) focused = Number(card.dataset.position);
    });
    list.addEventListener("click", (event) => {
      const card = event.target.closest("li");
      // a new tab, by the address alone
      if (!card || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      focused = Number(card.dataset.position);
      state.set({
        view: "frame",
        frame: table.name(order[focused]),
        zoom: 1,
        x: 0.5,
        y: 0.5,
        probe: null,
      });
    });
    // The order stays while a frame is looked at, so that "next" keeps its meaning while verdicts
    // are given.
    verdicts.onChange(() => {
      stale = true;
      if (state.get().view === "gallery") refresh(true);
    });
  }

  function toggleMoment(name) {
    state.set({ opened: state.get().opened === name ? null : name });
  }

  const FIELDS = [
    "score",
    "statistic",
    "model",
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
    if (key !== stamp) {
      stamp = key;
      refresh(changed.size === 1 && changed.has("opened"));
    } else if (changed.has("view") && current.view === "gallery") {
      if (stale) refresh(true);
      if (changed.has("frame") || current.frame)
        focusOn(Math.max(0, order.indexOf(table.index(current.frame))));
    }
  }

  segunc.gallery = {
    start,
    update,
    statisticWords,
    short,
    /* The frame of the card that has the focus, or null. */
    focusedFrame: () =>
      list.contains(document.activeElement) && focused < order.length
        ? table.name(order[focused])
        : null,
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
