"use strict";
/* The panes of one frame, at the same place and zoom: on the first, the stage, the chosen layer;
   beside it others. Over each lie flagged pixels, outline, boxes and probe. */
(function (segunc) {
  const { element, svg, table, state, layers, maps, verdicts } = segunc;
  const COUNTS = [1, 2, 4];
  const FIELDS = ["layer", "second", "third", "fourth"];
  /* The lines of each drawing, the lowest first: what is flagged has one thin line, the label two,
     so that neither their colours nor their lightness alone tell them apart. */
  const LINES = {
    flags: ["edge-dark", "edge-light"],
    outline: ["edge-dark", "edge-light", "edge-core"],
  };
  /* What a pixel is to the drawing of what is flagged. A hole lies within what is flagged. */
  const OUTSIDE = 0;
  const HELD = 1;
  const HOLE = 2;
  /* Share of a frame that is flagged from which on all that is not counts as a hole: MOST in
     drawing.py. */
  const MOST = 0.5;
  const grid = document.getElementById("panes");
  const stage = document.getElementById("stage");
  const [flags, outline, boxes] = ["flags", "outline", "boxes"].map((name) =>
    svg("svg", { class: `drawing ${name}`, preserveAspectRatio: "none", "aria-hidden": "true" }),
  );
  let size = [1, 1];
  let shown = null;
  let token = 0;
  let pointer = null;

  const panes = FIELDS.map((field, number) => {
    const choice = element(
      "select",
      {
        "aria-label": `Layer of the ${field} pane`,
        onchange: () => state.set({ [field]: choice.value }),
      },
      ...layers.every.map((layer) => element("option", { value: layer }, layers.title(layer))),
    );
    const photo = element("img", { alt: "", draggable: "false", hidden: true });
    const canvas = element("canvas", { class: "layer", hidden: true });
    const drawings = element("div", {}, ...(number ? [] : [flags, outline, boxes]));
    const world = element("div", { class: "world" }, photo, canvas, drawings);
    const probe = element("div", { class: "probe", "aria-hidden": "true" });
    const message = element("p", { class: "pane-message", role: "alert", hidden: true });
    const pane = number ? element("div", { class: "pane", hidden: true }) : stage;
    pane.append(
      world,
      probe,
      ...(number ? [element("div", { class: "pane-choice" }, choice)] : []),
      message,
    );
    return { field, choice, photo, canvas, drawings, world, probe, message, pane, painted: "" };
  });

  const used = (current) => panes.slice(0, Number(current.panes));

  /* Screen pixels of a frame pixel, and where the frame's corner lies on a pane. */
  function geometry(pane = stage) {
    const current = state.get();
    const [height, width] = size;
    const scale =
      current.zoom * Math.min(pane.clientWidth / width, pane.clientHeight / height) || 1;
    return {
      scale,
      left: pane.clientWidth / 2 - current.x * width * scale,
      top: pane.clientHeight / 2 - current.y * height * scale,
    };
  }

  /* Whether the labelled anomaly of a frame is outlined: as was said, or else once the reviewer has
     judged the frame, whom it must not lead. */
  const outlined = (index) => state.get().outline ?? verdicts.judged(table.name(index));

  /* Outlines, flags and boxes are those of the stage. */
  function draw() {
    const current = state.get();
    flags.style.display = current.flags ? "" : "none";
    outline.style.display = shown !== null && outlined(shown) ? "" : "none";
    for (const { drawings } of used(current).slice(1)) {
      const copies = [flags, outline, boxes].map((drawing) => drawing.cloneNode(true));
      drawings.replaceChildren(...copies);
    }
    place();
  }

  /* A cross lies at the probe or, on the panes beside, below the pointer. */
  function place() {
    const current = state.get();
    const [height, width] = size;
    const pinned = current.probe?.split(",").map(Number);
    grid.classList.toggle("zoomed", current.zoom > 1);
    for (const { pane, world, canvas, probe } of used(current)) {
      const { scale, left, top } = geometry(pane);
      world.style.width = `${width}px`;
      world.style.height = `${height}px`;
      world.style.transform = `translate(${left}px, ${top}px) scale(${scale})`;
      world.classList.toggle("magnified", scale >= 2);
      world.style.setProperty("--screen-pixel", `${1 / scale}px`);
      canvas.style.opacity = current.opacity;
      const at =
        pane !== stage && pointer ? [pointer[0] * width - 0.5, pointer[1] * height - 0.5] : pinned;
      probe.hidden = !at || !(at[0] < width && at[1] < height);
      if (!at) continue;
      const across = left + (at[0] + 0.5) * scale;
      const down = top + (at[1] + 0.5) * scale;
      probe.style.transform = `translate(${across}px, ${down}px)`;
    }
    liftNumbers();
  }

  /* Where the number of a region is on the screen by its place and the style sheet. What the
     browser says of small letters that are enlarged is rounded to pixels of the frame. */
  function numberPlace(number, { scale, left, top }) {
    const isBelow = number.classList.contains("below");
    const isAtEnd = number.getAttribute("text-anchor") === "end";
    const width = 9 * number.textContent.length;
    const start = left + Number(number.getAttribute("x")) * scale + (isBelow ? 4 : 0);
    const baseline = top + Number(number.getAttribute("y")) * scale + (isBelow ? 15 : -4);
    return new DOMRect(isAtEnd ? start - width : start, baseline - 12, width, 15);
  }

  /* Move the numbers of regions that lie under the zoom buttons above them, and above each
     other. */
  function liftNumbers() {
    const taken = [zooms.getBoundingClientRect()];
    for (const { pane, drawings } of used(state.get())) {
      const { scale, left, top } = geometry(pane);
      const corner = pane.getBoundingClientRect();
      const origin = { scale, left: corner.left + left, top: corner.top + top };
      for (const number of drawings.querySelectorAll("text")) {
        const box = numberPlace(number, origin);
        const lift = liftOver(taken, box);
        number.style.setProperty("--lift", String(lift));
        if (lift) taken.push(new DOMRect(box.x, box.y - lift, box.width, box.height));
      }
    }
  }

  /* By how many pixels something must rise to lie above all that it would overlap. */
  function liftOver(taken, { left, right, top, bottom }) {
    let lift = 0;
    for (const other of taken) {
      const isBeside = right <= other.left || left >= other.right;
      const isApart = bottom - lift <= other.top || top - lift >= other.bottom;
      if (!isBeside && !isApart) lift = bottom - other.top;
    }
    return lift;
  }

  /* What each pane shows: the layer asked for, or else the image, prediction, entropy and what
     there is. The stage falls back where the frame lacks a layer; another pane says so. */
  function layersOf(index, current) {
    const there = layers.every.filter((layer) => layers.available(index, layer));
    const first = there.includes(current.layer) ? current.layer : (there[0] ?? null);
    const wanted = ["image", "prediction", "entropy", segunc.data.page.ranking, ...there];
    const asked = used(current)
      .slice(1)
      .map(({ field }) => (layers.every.includes(current[field]) ? current[field] : null));
    const free = [...new Set(wanted)].filter(
      (layer) => there.includes(layer) && layer !== first && !asked.includes(layer),
    );
    return [first, ...asked.map((layer) => layer ?? free.shift() ?? "image")];
  }

  const hiddenError = (layer) => new Error(`${layers.title(layer)}: ${layers.HIDDEN}`);

  /* The maps of a layer of a frame, or the error that says what is missing. */
  async function load(index, layer, contents = layer ? layers.needs(layer) : []) {
    try {
      if (layer && layers.isHidden(index, layer)) throw hiddenError(layer);
      if (contents.some((content) => !table.has(index, content))) {
        throw new Error(`this frame has no ${layers.title(layer)}`);
      }
      return await Promise.all(contents.map((content) => maps.get(table.place(index), content)));
    } catch (error) {
      return error;
    }
  }

  /* Bring a frame onto the panes; resolves when it is seen, false where another came in between. */
  async function show(index) {
    const mine = ++token;
    const current = state.get();
    const wanted = layersOf(index, current);
    const threshold = current.flags ? table.thresholdOf(current) : null;
    const score = threshold === null ? null : current.score;
    const hasLabel = outlined(index) && table.has(index, "label/anomaly");
    const label = hasLabel ? "label/anomaly" : null;
    const [picture, over, truth, ...found] = await Promise.all([
      photoOf(index),
      load(index, score, score ? [score] : []),
      load(index, label),
      ...wanted.map((layer) => load(index, layer)),
    ]);
    if (mine !== token) return false;
    size = table.size(index) ?? [picture.naturalHeight || 1, picture.naturalWidth || 1];
    shown = index;
    grid.dataset.count = current.panes;
    grid.style.setProperty("--shape", `${size[1]} / ${size[0]}`);
    // Without it the image in place of a label would pass for one that holds nothing.
    const hidden = layers.isHidden(index, current.layer) ? [hiddenError(current.layer)] : [];
    panes.forEach((pane, i) => {
      pane.pane.hidden = i >= wanted.length;
      const others = i ? [] : [over, truth, ...hidden];
      const loaded = { found: found[i], label: truth[0] ?? null, others };
      if (i < wanted.length) paint(pane, index, wanted[i], loaded, picture);
    });
    const isFlagged = (pixel) => over[0].value(pixel) >= threshold;
    drawEdges(flags, over[0], `${index}/${score}/${threshold}`, isFlagged);
    const anomaly = table.objects(index) ? truth[0] : null;
    drawEdges(outline, anomaly, index, (pixel) => truth[0].codes[pixel] === 1);
    draw();
    return true;
  }

  /* Paint a layer on a pane: `found` its maps or the error, `label` the anomaly label where it may
     be seen, else null, and `others` what else may have failed. */
  function paint(pane, index, layer, { found, label, others }, picture) {
    const failures = [found, ...others]
      .filter((part) => part instanceof Error)
      .map(({ message }) => message);
    const photo = picture.cloneNode();
    const { only, score } = state.get();
    // The tint shows what the label ignores, once the label may be seen.
    const ignored = layer === "overlay" && label?.width === found[0]?.width ? label : null;
    const more = layer === "overlay" ? `${score}/${Boolean(ignored)}` : only;
    const key = found[0] ? `${index}/${layer}/${more}` : "";
    pane.choice.value = layer;
    photo.classList.toggle("under-colours", layer !== null && !layers.onImage(layer));
    if (pane.photo.getAttribute("src") === photo.getAttribute("src")) {
      pane.photo.className = photo.className;
    } else {
      pane.photo.replaceWith(photo);
      pane.photo = photo;
    }
    try {
      if (key && key !== pane.painted) layers.paint(pane.canvas, layer, found, ignored);
      pane.painted = key;
    } catch (error) {
      failures.push(error.message);
      pane.painted = "";
    }
    pane.canvas.hidden = !pane.painted;
    pane.message.textContent = [...new Set(failures)].join("; ");
    pane.message.hidden = !failures.length;
  }

  const KEPT = 60;
  const kept = new Map(); // frame -> promise of the address of its picture, least recent first
  const photos = {
    get(index) {
      const promise =
        kept.get(index) ??
        segunc.pictureOf(`frames/${table.folder(index)}/image`).catch(() => null);
      kept.delete(index);
      kept.set(index, promise);
      if (kept.size > KEPT) {
        const [oldest, address] = kept.entries().next().value;
        kept.delete(oldest);
        address.then((url) => url && URL.revokeObjectURL(url));
      }
      return promise;
    },
  };

  /* The decoded picture of a frame: it is seen at once where it is laid on a pane. */
  async function photoOf(index) {
    const file = table.has(index, "image") ? await photos.get(index) : null;
    const picture = element("img", { alt: "", draggable: "false", hidden: !file, src: file });
    await picture.decode().catch(() => {
      picture.hidden = true;
    });
    return picture;
  }

  /* Load what a frame shows before it is asked for. */
  function prepare(index) {
    const current = state.get();
    photoOf(index);
    const wanted = [...layersOf(index, current), current.flags ? current.score : null];
    for (const layer of wanted) load(index, layer);
  }

  /* The pixels of a map that `holds` as HELD and all others as OUTSIDE, with one row and one column
     of OUTSIDE around them, so that every edge lies between two pixels. */
  function borderedMask({ width, height }, holds) {
    const stride = width + 2;
    const mask = new Uint8Array(stride * (height + 2));
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        if (holds(y * width + x)) mask[(y + 1) * stride + x + 1] = HELD;
      }
    }
    return mask;
  }

  /* Mark as HOLE what is not held and does not reach the border of a bordered mask; where most is
     held, all that is not held, and the border is held. */
  function markHoles(mask, { width, height }) {
    const stride = width + 2;
    const held = mask.reduce((sum, pixel) => sum + pixel, 0);
    const covers = held > MOST * width * height;
    for (let pixel = 0; pixel < mask.length; pixel++) {
      if (mask[pixel] === OUTSIDE) mask[pixel] = HOLE;
    }
    if (covers) {
      const last = stride * (height + 1);
      mask.fill(HELD, 0, stride);
      mask.fill(HELD, last);
      for (let row = 0; row <= last; row += stride) {
        mask[row] = HELD;
        mask[row + stride - 1] = HELD;
      }
      return;
    }
    const waiting = [0];
    mask[0] = OUTSIDE;
    while (waiting.length) {
      const pixel = waiting.pop();
      const column = pixel % stride;
      const neighbours = [pixel - stride, pixel + stride];
      if (column > 0) neighbours.push(pixel - 1);
      if (column < stride - 1) neighbours.push(pixel + 1);
      for (const neighbour of neighbours) {
        if (mask[neighbour] !== HOLE) continue;
        mask[neighbour] = OUTSIDE;
        waiting.push(neighbour);
      }
    }
  }

  /* The stretches of a line of `length` pixels, from `first` on in steps of `along`, on which each
     pixel and the one that lies `back` before it are HELD and `beside`: pairs of start and end. */
  function edgeRuns(mask, beside, first, length, along, back) {
    const runs = [];
    let start = null;
    for (let at = 0; at < length; at++) {
      const pixel = first + at * along;
      const [one, other] = [mask[pixel], mask[pixel - back]];
      const differs = (one === HELD && other === beside) || (one === beside && other === HELD);
      if (differs && start === null) start = at;
      if (!differs && start !== null) {
        runs.push([start, at]);
        start = null;
      }
    }
    if (start !== null) runs.push([start, length]);
    return runs;
  }

  /* The edges of what is held beside pixels of a kind: [x, y, length] of those that go right, and
     of those that go down. */
  function edgesOf(mask, { width, height }, beside) {
    const stride = width + 2;
    const right = [];
    const down = [];
    for (let y = 0; y <= height; y++) {
      for (const [from, to] of edgeRuns(mask, beside, (y + 1) * stride + 1, width, 1, stride)) {
        right.push([from, y, to - from]);
      }
    }
    for (let x = 0; x <= width; x++) {
      for (const [from, to] of edgeRuns(mask, beside, stride + x + 1, height, stride, 1)) {
        down.push([x, from, to - from]);
      }
    }
    return { right, down };
  }

  /* Edges as a path in pixels of the frame, of which a condensed map has fewer. */
  function edgePath({ right, down }, [across, along]) {
    const steps = [];
    for (const [x, y, length] of right) {
      steps.push(`M${x * across} ${y * along}H${(x + length) * across}`);
    }
    for (const [x, y, length] of down) {
      steps.push(`M${x * across} ${y * along}V${(y + length) * along}`);
    }
    return steps.join("");
  }

  /* Edges as a path of closed lines, along which dashes go on. Wherever an edge ends, one that goes
     right meets one that goes down, and no other. */
  function closedPath({ right, down }, [across, along]) {
    const key = (x, y) => `${x},${y}`;
    const rightAt = new Map(); // corner -> the x at the other end
    const downAt = new Map(); // corner -> the y at the other end
    for (const [x, y, length] of right) {
      rightAt.set(key(x, y), x + length);
      rightAt.set(key(x + length, y), x);
    }
    for (const [x, y, length] of down) {
      downAt.set(key(x, y), y + length);
      downAt.set(key(x, y + length), y);
    }
    const steps = [];
    for (const [left, top] of right) {
      if (!rightAt.has(key(left, top))) continue; // a line that is drawn already
      let x = left;
      let y = top;
      steps.push(`M${x * across} ${y * along}`);
      while (rightAt.has(key(x, y))) {
        const end = rightAt.get(key(x, y));
        rightAt.delete(key(x, y));
        rightAt.delete(key(end, y));
        x = end;
        y = downAt.get(key(x, y));
        steps.push(`H${x * across}V${y * along}`);
      }
      steps.push("Z");
    }
    return steps.join("");
  }

  /* Draw the edges of what `holds` in a map, sharp at every zoom; nothing without a map. `key` says
     what is drawn: the same is not drawn again. The line around a hole in what is flagged is
     dashed, because a closed line within another would look like a flagged region. */
  function drawEdges(drawing, map, key, holds) {
    const wanted = map ? String(key) : "";
    if (drawing.dataset.key === wanted) return;
    drawing.dataset.key = wanted;
    drawing.replaceChildren();
    if (!map) return;
    drawing.setAttribute("viewBox", `0 0 ${size[1]} ${size[0]}`);
    /** @type {[number, number]} */
    const scales = [size[1] / map.width, size[0] / map.height];
    const mask = borderedMask(map, holds);
    if (drawing === flags) markHoles(mask, map);
    const around = edgesOf(mask, map, OUTSIDE);
    const within = edgesOf(mask, map, HOLE);
    const solid = edgePath(around, scales);
    const every = solid + edgePath(within, scales);
    const dashed = closedPath(within, scales);
    const lines = drawing === flags ? LINES.flags : LINES.outline;
    const top = lines.at(-1);
    const paths = lines.map((name) => {
      return svg("path", { class: name, d: name === top ? solid : every });
    });
    if (dashed) paths.push(svg("path", { class: `${top} hole`, d: dashed }));
    drawing.append(...paths);
  }

  /* The place on the frame below a place on the screen, as shares of its width and height. */
  function framePlace(event) {
    const pane = event.currentTarget;
    const box = pane.getBoundingClientRect();
    const { scale, left, top } = geometry(pane);
    return [
      (event.clientX - box.left - left) / scale / size[1],
      (event.clientY - box.top - top) / scale / size[0],
    ];
  }

  /* Zoom so that a point of the frame (shares; its middle when not given) stays where it is. */
  function zoomTo(zoom, point) {
    const current = state.get();
    const wanted = Math.min(64, Math.max(1, zoom));
    const keep = point ?? [current.x, current.y];
    const moved = (middle, at) =>
      Math.min(1, Math.max(0, at + ((middle - at) * current.zoom) / wanted));
    state.set(
      wanted === 1
        ? { zoom: 1, x: 0.5, y: 0.5 }
        : { zoom: wanted, x: moved(current.x, keep[0]), y: moved(current.y, keep[1]) },
    );
  }

  function zoomButton(words, label, zoom) {
    const attributes = { type: "button", "aria-label": label, title: label, onclick: zoom };
    return element("button", attributes, words);
  }

  const zoomBy = (factor) => () => zoomTo(state.get().zoom * factor);
  const zooms = element(
    "div",
    { class: "zooms", role: "group", "aria-label": "Zoom" },
    zoomButton("+", "Zoom in (+)", zoomBy(1.5)),
    zoomButton("−", "Zoom out (-)", zoomBy(1 / 1.5)),
    zoomButton("⤢", "Whole frame (f)", () => zoomTo(1)),
  );

  stage.tabIndex = 0;
  stage.setAttribute("role", "application");
  stage.setAttribute(
    "aria-label",
    "Picture of the frame. Arrow keys move the probe, plus and minus zoom.",
  );
  grid.append(...panes.slice(1).map(({ pane }) => pane), zooms);
  new ResizeObserver(place).observe(stage);

  segunc.stage = {
    show,
    prepare,
    draw,
    place,
    framePlace,
    zoomTo,
    layersOf,
    outlined,
    boxes,
    element: stage,
    panes: panes.map(({ pane }) => pane),
    /* A cross where the pointer is (shares of the frame; null for none). */
    point: (at) => {
      pointer = at;
      place();
    },
    nextCount: () =>
      state.set({
        panes: String(COUNTS[(COUNTS.indexOf(Number(state.get().panes)) + 1) % COUNTS.length]),
      }),
    size: () => size,
    photoOf,
    canvas: () => panes[0].canvas,
    drawings: () => [flags, outline, boxes],
    shown: () => shown,
    scale: () => geometry().scale,
  };
})(segunc);
