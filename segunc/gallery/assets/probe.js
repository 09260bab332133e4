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
    for (const content of [...contents, "label/truth", "label/anomaly"])
      if (table.everHas(content)) rows.push([content, layers.title(content)]);
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
      if (!map.step || Number.isNaN(value)) return { value, text: format(value) };
      // No more digits than the steps of the map can tell apart.
      const half = map.step / 2,
        digits = Math.min(6, Math.max(0, -Math.floor(Math.log10(half))));
      return { value, text: `${value.toFixed(digits)} ± ${half.toFixed(digits)}` };
    }
    const id = map.codes[place];
    if (content === "label/anomaly")
      return { value: id, text: { 0: "normal", 1: "anomaly" }[id] ?? "ignored" };
    return { value: id, text: layers.className(id) };
  }

  /* Fill in the values of a pixel; maps that are not in memory come when they are loaded. */
  function fill() {
    stage.point(point);
    const index = stage.shown();
    const at = point ?? pinned();
    const [height, width] = stage.size();
    const inside = at && at[0] >= 0 && at[0] < 1 && at[1] >= 0 && at[1] < 1;
    for (const [content, cell] of cells) {
      let found = null;
      if (index !== null && inside) {
        if (content === "pixel")
          found = {
            value: "",
            text: `${Math.floor(at[0] * width)}, ${Math.floor(at[1] * height)}`,
          };
        else if (table.has(index, content)) {
          const map = maps.peek(table.place(index), content);
          found = map ? read(content, map, at) : { value: "", text: "…" };
        }
      }
      cell.textContent = found?.text ?? "–";
      cell.dataset.value = found?.value ?? "";
    }
  }

  /* The middle of the pixel that the probe was set on. */
  function pinned() {
    const text = state.get().probe;
    if (!text) return null;
    const [x, y] = text.split(",").map(Number),
      [height, width] = stage.size();
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
    const said = [...cells].filter(([content]) =>
      ["prediction", state.get().score, "label/truth", "label/anomaly"].includes(content),
    );
    announce(
      `${at.join(", ")}: ${said.map(([content, cell]) => `${layers.title(content)} ${cell.textContent}`).join(", ")}`,
    );
  }

  function onKey(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[
      event.key
    ];
    if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const [height, width] = stage.size(),
      length = event.shiftKey ? 10 : 1;
    const [x, y] = state.get().probe?.split(",").map(Number) ?? [
      Math.floor(width / 2),
      Math.floor(height / 2),
    ];
    setProbe(x + step[0] * length, y + step[1] * length);
  }

  function onDown(event) {
    const pane = event.currentTarget;
    if (event.button !== 0 || event.target.matches("select")) return;
    if (event.shiftKey || state.get().marking) return onMark(event);
    const from = [event.clientX, event.clientY],
      before = state.get(),
      scale = stage.scale(),
      [height, width] = stage.size();
    let dragged = false;
    const move = (e) => {
      const dx = e.clientX - from[0],
        dy = e.clientY - from[1];
      dragged ||= Math.hypot(dx, dy) > 4;
      if (!dragged || before.zoom === 1) return;
      const within = (share) => Math.min(1, Math.max(0, share));
      state.set({
        x: within(before.x - dx / scale / width),
        y: within(before.y - dy / scale / height),
      });
    };
    const up = (e) => {
      pane.removeEventListener("pointermove", move);
      const [across, down] = stage.framePlace(e);
      if (!dragged && across >= 0 && across < 1 && down >= 0 && down < 1) {
        state.set({ probe: `${Math.floor(across * width)},${Math.floor(down * height)}` });
      }
    };
    pane.setPointerCapture(event.pointerId);
    pane.addEventListener("pointermove", move);
    pane.addEventListener("pointerup", up, { once: true });
  }

  /* Drag a box around a missed object. */
  function onMark(event) {
    const pane = event.currentTarget,
      from = stage.framePlace(event),
      move = (e) => segunc.regions.drag([from, stage.framePlace(e)], false);
    pane.setPointerCapture(event.pointerId);
    pane.addEventListener("pointermove", move);
    pane.addEventListener(
      "pointerup",
      (e) => {
        // an event has its pane no longer when the reviewer's name has been asked for
        const to = stage.framePlace(e);
        pane.removeEventListener("pointermove", move);
        segunc.reviewing.named(() => segunc.regions.drag([from, to], true));
      },
      { once: true },
    );
  }

  function start() {
    build();
    for (const pane of stage.panes) {
      pane.addEventListener("pointermove", (event) => {
        point = stage.framePlace(event);
        fill();
      });
      pane.addEventListener("pointerleave", () => {
        point = null;
        fill();
      });
      pane.addEventListener("pointerdown", onDown);
      pane.addEventListener(
        "wheel",
        (event) => {
          event.preventDefault();
          stage.zoomTo(
            state.get().zoom * Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)),
            stage.framePlace(event),
          );
        },
        { passive: false },
      );
      pane.addEventListener("dblclick", () => stage.zoomTo(1));
    }
    stage.element.addEventListener("keydown", onKey);
  }

  segunc.probe = { fill, loadAll, pinned, start };
})(segunc);
