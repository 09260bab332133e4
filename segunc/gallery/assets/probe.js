"use strict";
/* The pixel under the pointer: its values in real units and its classes; panning, zooming and boxes
   by hand. */
(function (segunc) {
  const { element, table, state, stage, maps, layers, format, announce } = segunc;
  const { page } = segunc.data;
  const box = document.getElementById("values");
  const cells = new Map(); // content -> cell
  let point = null; // where the pointer is, as shares of the frame

  function build() {
    const contents = ["prediction", ...table.scores];
    const rows = [["pixel", "pixel (x, y)"]];
    for (const content of [...contents, "label/truth", "label/anomaly"]) {
      if (table.everHas(content)) rows.push([content, layers.title(content)]);
    }
    for (const [content, words] of rows) {
      const cell = element("dd", { "data-content": content }, "–");
      cells.set(content, cell);
      const unit = page.scores[content]?.unit;
      box.append(
        element(
          "div",
          {},
          element("dt", { title: unit ? `${words} (${unit})` : words }, words),
          cell,
        ),
      );
    }
  }

  function read(content, map, at) {
    const place = map.place(...at);
    if (place === null) return null;
    const value = map.value(place);
    if (table.scores.includes(content)) {
      if (Number.isNaN(value)) return { value, text: "no value" };
      if (!map.step) return { value, text: format(value) };
      // No more digits than the steps of the map can tell apart.
      const half = map.step / 2;
      const digits = Math.min(6, Math.max(0, -Math.floor(Math.log10(half))));
      return { value, text: `${value.toFixed(digits)} ± ${half.toFixed(digits)}` };
    }
    const id = map.codes[place];
    if (content === "label/anomaly") {
      return { value: id, text: { 0: "normal", 1: "anomaly" }[id] ?? "ignored" };
    }
    return { value: id, text: layers.className(id) };
  }

  /* What a cell shows of a place on a frame: value and text; null where there is nothing. */
  function contentAt(content, index, at) {
    if (content === "pixel") {
      const [height, width] = stage.size();
      return {
        value: "",
        text: `${Math.floor(at[0] * width)}, ${Math.floor(at[1] * height)}`,
      };
    }
    if (!table.has(index, content)) return null;
    const map = maps.peek(table.place(index), content);
    return map ? read(content, map, at) : { value: "", text: "…" };
  }

  const isInside = (at) => at !== null && at.every((share) => share >= 0 && share < 1);

  /* Fill in the values of a pixel; maps that are not in memory come when they are loaded. */
  function fill() {
    stage.point(point);
    const index = stage.shown();
    const at = point ?? pinned();
    const isShown = index !== null && isInside(at);
    box.classList.toggle("pinned", pinned() !== null);
    for (const [content, cell] of cells) {
      const shown = isShown ? contentAt(content, index, at) : null;
      cell.textContent = shown?.text ?? "–";
      cell.dataset.value = shown?.value ?? "";
    }
  }

  /* The middle of the pixel that the probe was set on. */
  function pinned() {
    const text = state.get().probe;
    if (!text) return null;
    const [x, y] = text.split(",").map(Number);
    const [height, width] = stage.size();
    return [(x + 0.5) / width, (y + 0.5) / height];
  }

  /* Load all that is shown of a pixel. */
  async function loadAll(index) {
    await Promise.allSettled(
      [...cells.keys()]
        .filter((c) => c !== "pixel" && table.has(index, c))
        .map((c) => maps.get(table.place(index), c)),
    );
    if (stage.shown() === index) fill();
  }

  /* The pixel of the cross: where the probe was set, else in the middle of the frame. */
  function crossPixel() {
    const [height, width] = stage.size();
    const pixel = state.get().probe?.split(",").map(Number) ?? [width / 2, height / 2];
    return [Math.min(width - 1, Math.floor(pixel[0])), Math.min(height - 1, Math.floor(pixel[1]))];
  }

  let corner = null; // the pixel of a box's first corner, while its second is looked for

  /* Show the cross from which a box is begun by keys. */
  function showCross() {
    state.set({ probe: crossPixel().join(",") });
  }

  /* The places of two corners of a box that holds the pixels of both. */
  function cornersOf(first, second) {
    const [x1, y1] = first;
    const [x2, y2] = second;
    const [height, width] = stage.size();
    return [
      [Math.min(x1, x2) / width, Math.min(y1, y2) / height],
      [(Math.max(x1, x2) + 1) / width, (Math.max(y1, y2) + 1) / height],
    ];
  }

  /* Set the first corner of a box at the cross or, with the second, keep the box. */
  function setCorner() {
    const at = crossPixel();
    showCross();
    if (corner === null) {
      corner = at;
      segunc.regions.drag(cornersOf(at, at));
      announce(`first corner at ${at.join(", ")}: arrows, then Enter at the second`, true);
      return;
    }
    const corners = cornersOf(corner, at);
    corner = null;
    segunc.reviewing.named(
      () => segunc.regions.mark(corners),
      () => segunc.regions.drag(null),
    );
  }

  /* Draw the box up to the cross, and say how large it is. */
  function sizeBox() {
    const at = crossPixel();
    const corners = cornersOf(corner, at);
    const [width, height] = at.map((pixel, axis) => Math.abs(pixel - corner[axis]) + 1);
    segunc.regions.drag(corners);
    announce(`box of ${width} x ${height} pixels: Enter keeps it, Escape drops it`, true);
  }

  /* Forget the first corner where the box was given up, or belongs to another frame. */
  function forgetCorner({ marking }, changed) {
    const isOver = !marking || changed.has("frame") || changed.has("view");
    if (corner === null || !isOver) return;
    corner = null;
    segunc.regions.drag(null);
  }

  function setProbe(x, y) {
    const [height, width] = stage.size();
    const at = [Math.min(width - 1, Math.max(0, x)), Math.min(height - 1, Math.max(0, y))];
    const changes = { probe: at.join(",") };
    if (state.get().zoom > 1) {
      changes.x = (at[0] + 0.5) / width;
      changes.y = (at[1] + 0.5) / height;
    }
    point = null;
    state.set(changes);
    fill();
    const contents = ["prediction", state.get().score, "label/truth", "label/anomaly"];
    const words = [];
    for (const [content, cell] of cells) {
      if (contents.includes(content)) words.push(`${layers.title(content)} ${cell.textContent}`);
    }
    if (corner !== null) sizeBox();
    else announce(`${at.join(", ")}: ${words.join(", ")}`, state.get().marking);
  }

  function onKey(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[
      event.key
    ];
    if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const length = event.shiftKey ? 10 : 1;
    const [x, y] = crossPixel();
    setProbe(x + step[0] * length, y + step[1] * length);
  }

  const fingers = new Map(); // pointers on a pane -> their places on the screen

  /* Follow a pointer until it is lifted; `moved` on each move and `lifted` at the end, which a
     gesture of the browser (pointercancel) or a second finger takes away. */
  function follow(event, moved, lifted, ended = () => {}) {
    const pane = event.currentTarget;
    const controller = new AbortController();
    const { signal } = controller;
    const when = (name, act) => {
      const handle = (e) => {
        if (e.pointerId !== event.pointerId) return;
        if (fingers.size > 1) finish();
        else act(e);
      };
      pane.addEventListener(name, handle, { signal });
    };
    const finish = () => {
      controller.abort();
      ended();
    };
    pane.setPointerCapture(event.pointerId);
    when("pointermove", moved);
    when("pointercancel", finish);
    when("pointerup", (e) => {
      const place = stage.framePlace(e); // an event has its pane only while it is handled
      finish();
      lifted(place);
    });
  }

  function onDown(event) {
    if (event.button !== 0 || event.target.closest("select, button")) return;
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    if (fingers.size === 2) pinch(event);
    else if (event.shiftKey || state.get().marking) boxMissed(event);
    else pan(event);
  }

  /* Move the picture, or set the probe where the pointer did not move. */
  function pan(event) {
    const before = state.get();
    const scale = stage.scale();
    const [height, width] = stage.size();
    const within = (share) => Math.min(1, Math.max(0, share));
    let dragged = false;
    const moved = (e) => {
      const dx = e.clientX - event.clientX;
      const dy = e.clientY - event.clientY;
      dragged ||= Math.hypot(dx, dy) > 4;
      if (!dragged || before.zoom === 1) return;
      const x = within(before.x - dx / scale / width);
      const y = within(before.y - dy / scale / height);
      state.set({ x, y });
    };
    follow(event, moved, ([across, down]) => {
      const inside = across >= 0 && across < 1 && down >= 0 && down < 1;
      if (dragged || !inside) return;
      state.set({ probe: `${Math.floor(across * width)},${Math.floor(down * height)}` });
    });
  }

  /* Drag a box around a missed object. */
  function boxMissed(event) {
    corner = null; // one that was set by keys
    const from = stage.framePlace(event);
    const { drag, mark } = segunc.regions;
    const moved = (e) => drag([from, stage.framePlace(e)]);
    const forget = () => drag(null);
    const lifted = (to) => {
      drag([from, to]);
      segunc.reviewing.named(() => mark([from, to]), forget);
    };
    follow(event, moved, lifted, forget);
  }

  function fingerDistance() {
    const [[x1, y1], [x2, y2]] = [...fingers.values()];
    return Math.hypot(x1 - x2, y1 - y2) || 1;
  }

  /* Zoom by the distance of two fingers, about the place between them. */
  function pinch(event) {
    const pane = event.currentTarget;
    const [[x1, y1], [x2, y2]] = [...fingers.values()];
    const middle = { currentTarget: pane, clientX: (x1 + x2) / 2, clientY: (y1 + y2) / 2 };
    const { zoom } = state.get();
    const distance = fingerDistance();
    const moved = () => {
      if (fingers.size === 2) {
        stage.zoomTo((zoom * fingerDistance()) / distance, stage.framePlace(middle));
      } else {
        pane.removeEventListener("pointermove", moved);
      }
    };
    pane.addEventListener("pointermove", moved);
  }

  function onWheel(event) {
    event.preventDefault();
    const speed = event.deltaMode ? 0.05 : 0.0015; // of lines, of pixels
    const zoom = state.get().zoom * Math.exp(-event.deltaY * speed);
    stage.zoomTo(zoom, stage.framePlace(event));
  }

  /* The pointer on a pane tells the values below it; every finger on it is known by its place. */
  function watch(pane) {
    const leave = (event) => {
      fingers.delete(event.pointerId);
      point = null;
      fill();
    };
    pane.addEventListener("pointermove", (event) => {
      if (fingers.has(event.pointerId)) {
        fingers.set(event.pointerId, [event.clientX, event.clientY]);
      }
      point = stage.framePlace(event);
      fill();
    });
    pane.addEventListener("pointerleave", leave);
    pane.addEventListener("pointerdown", onDown);
    pane.addEventListener("wheel", onWheel, { passive: false });
    pane.addEventListener("dblclick", () => stage.zoomTo(1));
  }

  function start() {
    build();
    for (const pane of stage.panes) watch(pane);
    // After the gesture that ends with it, on the way up.
    const lift = ({ pointerId }) => fingers.delete(pointerId);
    document.addEventListener("pointerup", lift);
    document.addEventListener("pointercancel", lift);
    stage.element.addEventListener("keydown", onKey);
    state.onChange(forgetCorner);
  }

  segunc.probe = { fill, loadAll, pinned, showCross, setCorner, start };
})(segunc);
