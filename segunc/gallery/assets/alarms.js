"use strict";
/* All flagged regions of all frames as one list, the strongest first: each with its crop, what is
   predicted there, its size and place and the scores at its peak and why it is one, judged with one
   key. */
(function (segunc) {
  const {
    element,
    table,
    state,
    verdicts,
    regions,
    maps,
    layers,
    stage,
    reviewing,
    format,
    compact,
    announce,
  } = segunc;
  const { page, frames } = segunc.data;
  const MOST = 500,
    CONTEXT = 0.6; // alarms in the list; of the box around it, on each side of the crop
  const list = element("ol", { id: "alarm-list", "aria-label": "Alarms" }),
    note = element("p", { class: "small", id: "alarm-note", role: "status" });
  const score = page.ranking,
    threshold = score ? page.scores[score].region_from : null;
  const alarms = frames
    .flatMap((frame, index) =>
      frame.alarms.map((alarm) => ({ ...alarm, index, frame: frame.name })),
    )
    .sort((a, b) => b.strength - a.strength);
  const { events } = page,
    leaders = new Map(); // of each event its strongest alarm, which stands for it
  for (const alarm of alarms)
    if (alarm.event !== null && !leaders.has(alarm.event)) leaders.set(alarm.event, alarm);
  const once = element("input", {
    type: "checkbox",
    id: "alarm-once",
    checked: events.length > 0,
    onchange: () => choose(once.checked),
  });
  let at = 0,
    shown = [],
    total = 0;

  /* Where it lies, in words. */
  function place({ index, box: [x, y, w, h] }) {
    const [height, width] = table.size(index),
      across = (x + w / 2) / width,
      down = (y + h / 2) / height;
    return `${down < 0.4 ? "top" : down < 0.7 ? "middle" : "bottom"} ${across < 1 / 3 ? "left" : across < 2 / 3 ? "centre" : "right"}`;
  }

  const entryOf = (alarm) =>
    verdicts
      .regions(alarm.frame)
      .find(
        ({ region }) => region.score === score && regions.overlap(region.box, alarm.box) >= 0.5,
      ) ?? null;

  /* The picture around a region, which is outlined. */
  async function crop(alarm, canvas) {
    const photo = await stage.photoOf(alarm.index),
      [rows, columns] = table.size(alarm.index),
      [x, y, w, h] = alarm.box;
    const side = Math.min(Math.max(w, h, 48) * (1 + 2 * CONTEXT), Math.max(rows, columns)),
      aspect = canvas.width / canvas.height;
    const [wide, high] = [Math.min(columns, side * Math.max(1, aspect)), Math.min(rows, side)];
    const left = Math.min(columns - wide, Math.max(0, x + w / 2 - wide / 2)),
      top = Math.min(rows - high, Math.max(0, y + h / 2 - high / 2));
    const scale = Math.min(canvas.width / wide, canvas.height / high),
      draw = canvas.getContext("2d");
    const natural = photo.hidden ? null : photo.naturalWidth / columns;
    draw.setTransform(
      1,
      0,
      0,
      1,
      (canvas.width - wide * scale) / 2,
      (canvas.height - high * scale) / 2,
    );
    if (natural)
      draw.drawImage(
        photo,
        left * natural,
        top * natural,
        wide * natural,
        high * natural,
        0,
        0,
        wide * scale,
        high * scale,
      );
    draw.lineJoin = "miter";
    for (const [colour, width] of [
      ["#000", 5],
      ["#00e0e0", 2],
    ]) {
      draw.strokeStyle = colour;
      draw.lineWidth = width;
      draw.strokeRect((x - left) * scale, (y - top) * scale, w * scale, h * scale);
    }
  }

  /* What a part of the score looks at. */
  const PARTS = {
    "deterministic-energy": "network",
    knn: page.second_encoder ? "second encoder" : "features",
  };

  /* Why it is an alarm, as recorded at its peak: how rare each part is by itself, the rarest first,
     and the most similar training frame. */
  function why({ parts = {}, nearest }) {
    const measured = page.scores[score].measured_to ?? Infinity,
      number = (value) => Number(value.toPrecision(2)).toLocaleString("en");
    const rare = (decades) =>
      decades < 0.5
        ? "usual"
        : `${decades > measured ? "< " : ""}1 in ${number(10 ** Math.min(decades, measured))}`;
    const said = Object.entries(parts)
      .sort((a, b) => b[1] - a[1])
      .map(
        ([name, decades], i) =>
          `${PARTS[name] ?? layers.name(name)} ${decades.toFixed(1)}${i ? "" : " decades"} (${rare(decades)})`,
      );
    const like = nearest
      ? `most like training frame ${nearest.frame}, distance ${nearest.distance.toFixed(2)}`
      : "";
    return [said.length ? `why: ${said.join(", ")}` : "", like].filter(Boolean);
  }

  function row(alarm, position) {
    const canvas = element("canvas", {
      width: 260,
      height: 150,
      role: "img",
      "aria-label": `crop of ${alarm.frame}`,
    });
    const name = alarm.class_id === null ? "" : `taken for ${layers.className(alarm.class_id)}`,
      time = table.time(alarm.index);
    // What the base alone says of these two is nearly what they say.
    const said = Object.entries(alarm.values).filter(
      ([name_]) =>
        name_ !== score && !["msp", "deterministic-msp", "deterministic-entropy"].includes(name_),
    );
    const peak = alarm.values[score],
      measured = page.scores[score].measured_to;
    const beyond = measured !== null && peak > measured ? ` (measured up to ${measured})` : "";
    const values = said.map(
      ([name_, value]) => `${layers.name(name_)} ${format(Number(value.toPrecision(3)))}`,
    );
    const because = why(alarm.reasons),
      event = alarm.event === null ? null : events[alarm.event],
      ends = event && [event.start, event.end].map((index) => segunc.seconds(table.time(index)));
    const lasts =
      event &&
      (event.frames > 1
        ? `event ${ends[0]} to ${ends[1]}, ${event.frames} frames`
        : "event of one frame");
    const button = element(
      "button",
      { type: "button", class: "alarm", "data-position": position, onclick: () => open(alarm) },
      canvas,
      element(
        "span",
        {},
        element("b", {}, `${position + 1} · ${alarm.frame}`),
        ...[
          [time === null ? null : segunc.seconds(time), lasts].filter(Boolean).join(" · "),
          [
            name,
            place(alarm),
            `${alarm.area.toLocaleString("en")} px, strength ${compact(alarm.strength)}`,
          ]
            .filter(Boolean)
            .join(" · "),
          `peak ${format(Number(peak.toPrecision(3)))}${beyond}${values.length && !because.length ? `; there ${values.join(", ")}` : ""}`,
          ...because,
        ]
          .filter(Boolean)
          .map((words) => element("span", {}, words)),
        element("span", { class: "verdict" }),
      ),
    );
    const item = element("li", {}, button);
    showVerdict(item, alarm);
    return item;
  }

  function showVerdict(item, alarm) {
    const verdict = entryOf(alarm)?.verdict ?? "",
      mark = item.querySelector(".verdict");
    mark.className = `verdict badge person ${verdict}`;
    mark.textContent = verdict ? verdicts.REGION_WORDS[verdict] : "";
    mark.hidden = !verdict;
  }

  function open(alarm) {
    state.set({
      view: "frame",
      frame: alarm.frame,
      score,
      layer: score,
      threshold,
      flags: true,
      region: null,
      zoom: 1,
      x: 0.5,
      y: 0.5,
    });
    segunc.frame.ready()?.then(() => {
      const position = regions
        .shown()
        .findIndex(({ region }) => regions.overlap(region.box, alarm.box) >= 0.5);
      if (position >= 0) regions.select(position);
    });
  }

  function focusOn(position) {
    at = Math.min(shown.length - 1, Math.max(0, position));
    list.children[at]?.firstChild.focus();
    list.children[at]?.scrollIntoView({ block: "nearest" });
  }

  /* Judge the alarm that has the focus (else the first) and go to the next. The name is asked for
     and the focus moves before the map is waited for: the next key must find the dialog or the next
     alarm. */
  function judge(verdict) {
    const focused = document.activeElement?.closest?.(".alarm");
    if (focused) at = Number(focused.dataset.position);
    const alarm = shown[at],
      position = at;
    if (!alarm) return;
    if (verdict && !(verdict in verdicts.REGION_WORDS))
      return announce("an alarm is true, false, part of a missed object, or unsure", true);
    reviewing.named(() => {
      focusOn(position + 1);
      return store(alarm, position, verdict);
    }, true);
  }

  /* Keep a verdict on an alarm as one on the region of its frame that it is. */
  async function store(alarm, position, verdict) {
    const map = await maps.get(table.place(alarm.index), score),
      known = entryOf(alarm);
    const pieces = known ? [] : regions.pieces(map, threshold, table.size(alarm.index)).found;
    const best = pieces
      .map((piece) => [regions.overlap(piece.box, alarm.box), piece])
      .sort((a, b) => b[0] - a[0])[0];
    if (!known && !best)
      return announce(
        `alarm ${position + 1} is too small to be judged by itself; open its frame`,
        true,
      );
    verdicts.set(alarm.frame, { verdict }, known?.region ?? { score, threshold, ...best[1] });
    announce(
      `alarm ${position + 1}: ${verdict ? verdicts.REGION_WORDS[verdict] : "verdict taken back"}`,
      true,
    );
  }

  const inSight = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        inSight.unobserve(target);
        crop(shown[Number(target.firstChild.dataset.position)], target.querySelector("canvas"));
      }
    },
    { rootMargin: "400px" },
  );

  /* List every alarm, or one of each event. */
  function choose(one) {
    const chosen = alarms.filter(
      (alarm) => !one || alarm.event === null || leaders.get(alarm.event) === alarm,
    );
    shown = chosen.slice(0, MOST);
    total = chosen.length;
    at = 0;
    inSight.disconnect();
    list.replaceChildren(...shown.map(row));
    for (const item of list.children) inSight.observe(item);
    describe(one);
  }

  function start() {
    const view = document.getElementById("alarms-view");
    if (events.length)
      view.append(element("label", { class: "small" }, once, " one alarm for each event"));
    view.append(note, list);
    choose(events.length > 0);
    list.addEventListener("keydown", (event) => {
      const step = {
        ArrowDown: 1,
        ArrowUp: -1,
        j: 1,
        k: -1,
        Home: -shown.length,
        End: shown.length,
      }[event.key];
      if (step === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      focusOn(Number(document.activeElement.dataset.position ?? at) + step);
    });
    verdicts.onChange(() => [...list.children].forEach((item, i) => showVerdict(item, shown[i])));
  }

  function describe(one) {
    const decades = shown.some(({ reasons }) => reasons.parts)
      ? " 3 decades: one in 1,000 pixels of normal scenes reaches as much."
      : "";
    const rest = total > MOST ? `, of which the strongest ${MOST} are listed` : "",
      of = one
        ? `${total} events: alarms that are followed over frames, each at its peak; of `
        : "";
    note.textContent =
      score === null || threshold === null
        ? "The maps record no threshold of their score, so there are no alarms; open a frame and choose one."
        : `${of}${alarms.length} regions of ${layers.name(score)} ≥ ${format(threshold)}, at most five a frame and none below a ten-thousandth of it, the strongest first${rest}. Enter opens the frame; a, s, m, u judge.${decades}`;
  }

  segunc.alarms = { start, judge, focusOn: () => focusOn(at), count: alarms.length, leaders, open };
})(segunc);
