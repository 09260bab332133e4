"use strict";
/* The regions of a frame: what the threshold flags, piece by piece, and boxes drawn around what was
   missed; each is judged by itself. */
(function (segunc) {
  const { element, svg, table, state, stage, maps, verdicts, format, announce } = segunc;
  const LISTED = 30; // more are named by their number alone
  const list = element("ol", { id: "regions", "aria-label": "Regions" });
  const note = element("p", { class: "small", id: "regions-note", role: "status" });
  let shown = [],
    drawn = null,
    stamp = "",
    flagged = { stamp: "", found: [], small: 0 };

  /* Runs of pixels at or above the threshold, joined where they touch (8 neighbours): the pieces,
     the largest first, in pixels of the frame, of which a condensed map has fewer. */
  function pieces(map, threshold, size) {
    const { width, height } = map,
      runs = [],
      parent = [];
    const across = (x) => Math.round((x * size[1]) / width),
      down = (y) => Math.round((y * size[0]) / height);
    const root = (i) => {
      while (parent[i] !== i) i = parent[i] = parent[parent[i]];
      return i;
    };
    let above = [0, 0];
    for (let y = 0; y < height; y++) {
      const first = runs.length;
      let candidate = above[0];
      for (let x = 0; x < width; x++) {
        if (!(map.value(y * width + x) >= threshold)) continue;
        const from = x;
        let highest = -Infinity;
        for (; x < width && map.value(y * width + x) >= threshold; x++)
          highest = Math.max(highest, map.value(y * width + x));
        const id = runs.push({ y, from, to: x, highest }) - 1;
        parent.push(id);
        while (candidate < above[1] && runs[candidate].to < from) candidate++;
        for (let i = candidate; i < above[1] && runs[i].from <= x; i++) parent[root(id)] = root(i);
      }
      above = [first, runs.length];
    }
    const found = new Map();
    runs.forEach(({ y, from, to, highest }, i) => {
      const key = root(i);
      const one = found.get(key) ?? {
        left: from,
        right: to,
        top: y,
        bottom: y,
        area: 0,
        value: -Infinity,
        rows: new Map(),
      };
      found.set(key, one);
      one.left = Math.min(one.left, from);
      one.right = Math.max(one.right, to);
      one.bottom = y;
      one.area += (across(to) - across(from)) * (down(y + 1) - down(y));
      one.value = Math.max(one.value, highest);
      one.rows.set(y, [...(one.rows.get(y) ?? []), [across(from), across(to)]]);
    });
    const smallest = Math.max(segunc.data.page.objects.smallest, (size[0] * size[1]) / 10000);
    const mask = (rows) =>
      [...rows].flatMap(([y, of]) =>
        Array.from({ length: down(y + 1) - down(y) }, (_, i) =>
          of.map(([from, to]) => [(down(y) + i) * size[1] + from, to - from]),
        ).flat(2),
      );
    const every = [...found.values()].sort((a, b) => b.area - a.area),
      large = every.filter(({ area }) => area >= smallest);
    return {
      small: every.length - large.length,
      found: large.map(({ left, right, top, bottom, area, value, rows }) => ({
        box: [across(left), down(top), across(right) - across(left), down(bottom + 1) - down(top)],
        area,
        value,
        mask: mask(rows),
        size,
      })),
    };
  }

  function overlap([x, y, w, h], [x2, y2, w2, h2]) {
    const across = Math.min(x + w, x2 + w2) - Math.max(x, x2),
      down = Math.min(y + h, y2 + h2) - Math.max(y, y2);
    const both = Math.max(0, across) * Math.max(0, down);
    return both / (w * h + w2 * h2 - both);
  }

  /* What there is to judge on the frame that is seen: pieces at the threshold, with the verdict on
     the one they overlap most, and regions with a verdict that are no piece now. */
  function collect(index) {
    const { score, threshold, flags } = state.get();
    const map = flags && threshold !== null && score ? maps.peek(table.place(index), score) : null;
    const key = `${index}/${score}/${threshold}`;
    if (map && flagged.stamp !== key)
      flagged = { stamp: key, ...pieces(map, threshold, stage.size()) };
    const judged = verdicts.regions(table.name(index)),
      taken = new Set();
    const now = (map ? flagged.found : []).map((piece) => {
      const near = judged
        .filter((entry) => entry.region.score === score && !taken.has(entry))
        .map((entry) => [overlap(entry.region.box, piece.box), entry])
        .sort((a, b) => b[0] - a[0])[0];
      if (!near || near[0] < 0.5) return { region: { score, threshold, ...piece }, entry: null };
      taken.add(near[1]);
      return { region: { score, threshold, ...piece }, entry: near[1] };
    });
    const rest = judged
      .filter((entry) => !taken.has(entry))
      .map((entry) => ({ region: entry.region, entry }));
    note.textContent = map
      ? `${now.length} flagged region${now.length === 1 ? "" : "s"}${flagged.small ? `, ${flagged.small} smaller not listed` : ""}`
      : "";
    return [...now, ...rest];
  }

  function update(index) {
    const { score, threshold, flags, region, view } = state.get();
    if (index === null || view !== "frame") return;
    const loaded = flags && score ? Boolean(maps.peek(table.place(index), score)) : false;
    const key = JSON.stringify([
      index,
      score,
      threshold,
      flags,
      region,
      loaded,
      verdicts.regions(table.name(index)),
    ]);
    if (key === stamp) return;
    stamp = key;
    shown = collect(index);
    list.replaceChildren(...shown.slice(0, LISTED).map(row));
    list.hidden = !shown.length;
    draw();
  }

  const title = ({ region, entry }) =>
    `${region.score ? `${region.area.toLocaleString("en")} px, max ${format(Number(region.value.toPrecision(3)))}` : "drawn"}` +
    `${entry?.verdict ? ` · ${verdicts.REGION_WORDS[entry.verdict]}` : ""}`;

  function row(one, position) {
    return element(
      "li",
      {},
      element(
        "button",
        {
          type: "button",
          "aria-pressed": String(state.get().region === position),
          "data-verdict": one.entry?.verdict ?? "",
          onclick: () => select(position),
        },
        `${position + 1} · ${title(one)}`,
      ),
    );
  }

  function draw() {
    const [height, width] = stage.size(),
      chosen = state.get().region;
    const group = (one, position) => {
      const [x, y, w, h] = one.region.box,
        kind = `${position === chosen ? " chosen" : ""}${one.region.score ? "" : " drawn"}`;
      const number = svg("text", { x, y }, String(position + 1));
      const rect = svg("rect", { x, y, width: w, height: h });
      return svg(
        "g",
        { class: `region ${one.entry?.verdict ?? ""}${kind}` },
        rect.cloneNode(),
        rect,
        number,
      );
    };
    stage.boxes.setAttribute("viewBox", `0 0 ${width} ${height}`);
    stage.boxes.replaceChildren(
      ...shown.map(group),
      ...(drawn
        ? [
            svg(
              "g",
              { class: "region drawn chosen" },
              svg("rect", { x: drawn[0], y: drawn[1], width: drawn[2], height: drawn[3] }),
            ),
          ]
        : []),
    );
    stage.draw();
  }

  function select(position) {
    state.set({ region: position });
    const one = shown[position];
    if (!one) return;
    const [x, y, w, h] = one.region.box,
      [height, width] = stage.size();
    if (state.get().zoom > 1) state.set({ x: (x + w / 2) / width, y: (y + h / 2) / height });
    announce(`region ${position + 1} of ${shown.length}: ${title(one)}`);
  }

  /* To the next or previous region; the first asks the threshold to show what it flags. */
  function step(by) {
    if (!state.get().flags && state.get().score) segunc.frame.toggle("flags");
    if (!shown.length) return announce("no region at this threshold");
    const now = state.get().region;
    select(
      now === null ? (by > 0 ? 0 : shown.length - 1) : (now + by + shown.length) % shown.length,
    );
  }

  /* Whether a region was there to be judged. */
  function judge(verdict) {
    const one = shown[state.get().region];
    if (!one) return false;
    if (verdict && !(verdict in verdicts.REGION_WORDS))
      announce("a region is true, false, part of a missed object, or unsure", true);
    else {
      verdicts.set(table.name(stage.shown()), { verdict }, one.entry?.region ?? one.region);
      announce(
        verdict ? `region: ${verdicts.REGION_WORDS[verdict]}` : "region: verdict taken back",
        true,
      );
    }
    return true;
  }

  /* The box between two places of the frame (shares of its width and height), inside of it. */
  function boxOf([[x1, y1], [x2, y2]]) {
    const [height, width] = stage.size(),
      within = (share, side) => Math.round(Math.min(1, Math.max(0, share)) * side);
    const [left, right] = [within(Math.min(x1, x2), width), within(Math.max(x1, x2), width)];
    const [top, bottom] = [within(Math.min(y1, y2), height), within(Math.max(y1, y2), height)];
    return [left, top, right - left, bottom - top];
  }

  /* Show the box that is being dragged; `done` marks what it holds as a missed object. */
  function drag(corners, finished) {
    drawn = boxOf(corners);
    const [x, y, w, h] = drawn;
    if (finished) {
      drawn = null;
      state.set({ marking: false });
      if (w * h >= segunc.data.page.objects.smallest) {
        const size = stage.size(),
          mask = Array.from({ length: h }, (_, i) => [(y + i) * size[1] + x, w]).flat();
        const region = {
          score: null,
          threshold: null,
          value: null,
          box: [x, y, w, h],
          area: w * h,
          size,
          mask,
        };
        verdicts.set(table.name(stage.shown()), { verdict: "missed" }, region);
        announce(`missed object marked at ${x}, ${y}, ${w} x ${h} pixels`, true);
      } else announce("too small a box; nothing was marked", true);
    }
    draw();
  }

  segunc.regions = {
    list,
    note,
    update,
    step,
    judge,
    drag,
    select,
    pieces,
    overlap,
    shown: () => shown,
  };
})(segunc);
