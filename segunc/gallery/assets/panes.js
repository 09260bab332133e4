"use strict";
/* Further panes beside the stage: other layers of the frame, at the same place and zoom, under the same pointer. */
(function (segunc) {
  const { element, table, state, layers, maps, stage } = segunc;
  const COUNTS = [1, 2, 4], FIELDS = ["second", "third", "fourth"];
  const grid = document.getElementById("panes");
  let token = 0;

  const panes = FIELDS.map((field) => {
    const choice = element("select", { "aria-label": `Layer of the ${field} pane`, onchange: () => state.set({ [field]: choice.value }) },
      ...layers.every.map((layer) => element("option", { value: layer }, layers.title(layer))));
    const photo = element("img", { alt: "", draggable: "false" }), layer = element("canvas", { class: "layer" });
    const drawings = element("div"), world = element("div", { class: "world" }, photo, layer, drawings);
    const probe = element("div", { class: "probe", "aria-hidden": "true" }), message = element("p", { class: "pane-message", hidden: true });
    const pane = element("div", { class: "pane", hidden: true }, world, probe, element("div", { class: "pane-choice" }, choice), message);
    return { field, choice, photo, layer, drawings, world, probe, message, pane, painted: "" };
  });

  /* What a pane shows until it is asked for something else: image, prediction, entropy, the second model, then the rest. */
  function defaults(current, index) {
    const { ranking } = segunc.data.page, wanted = ["image", "prediction", "entropy", ranking, `other/${current.layer}`, ...layers.every];
    const free = [...new Set(wanted)].filter((layer) => layer !== current.layer && layers.every.includes(layer) && layers.available(index, layer));
    const other = `other/${current.layer}`;
    // Two panes show a layer of two models where there are two.
    return current.panes === "2" && free.includes(other) ? [other, ...free] : free;
  }

  const used = (current) => panes.slice(0, Number(current.panes) - 1);

  /* Paint the panes of a frame; a pane says what it cannot show. */
  async function show(index) {
    const mine = ++token, current = state.get(), shown = used(current);
    grid.dataset.count = current.panes;
    for (const { pane } of panes) pane.hidden = !shown.some((one) => one.pane === pane);
    const free = defaults(current, index), taken = new Set(shown.map(({ field }) => current[field]));
    const src = table.has(index, "image") ? `frames/${table.folder(index)}/image.jpg` : "";
    await Promise.all(shown.map(async (one) => {
      const asked = current[one.field], layer = layers.every.includes(asked) ? asked : free.find((name) => !taken.has(name)) ?? "image";
      taken.add(layer);
      one.choice.value = layer;
      let found = [], failure = layers.available(index, layer) ? "" : `this frame has no ${layers.title(layer)}`;
      try {
        if (!failure) found = await Promise.all(layers.needs(layer).map((content) => maps.get(table.place(index), content)));
      } catch (error) {
        failure = error.message;
      }
      if (mine !== token) return;
      if ((one.photo.getAttribute("src") ?? "") !== src) one.photo.src = src;
      one.photo.hidden = !src;
      one.photo.classList.toggle("under-colours", layer !== "image");
      const key = failure || layer === "image" ? "" : `${index}/${layer}`;
      if (key && key !== one.painted) {
        try {
          layers.paint(one.layer, layer, found);
        } catch (error) {
          failure = error.message;
        }
      }
      one.painted = failure ? "" : key;
      one.layer.hidden = !one.painted;
      one.message.textContent = failure;
      one.message.hidden = !failure;
    }));
    if (mine === token) draw();
  }

  /* Outlines, flags and boxes are those of the stage. */
  function draw() {
    for (const { drawings } of used(state.get())) drawings.replaceChildren(...stage.drawings().map((one) => one.cloneNode(true)));
    place();
  }

  function place() {
    const current = state.get();
    for (const { pane, world, layer, probe } of used(current)) {
      stage.placeWorld(world, pane);
      layer.style.opacity = current.opacity;
      stage.placeProbe(probe, pane);
    }
  }

  /* A cross where the pointer is on another pane (shares of the frame; null for none), else at the probe. */
  function point(at) {
    const [height, width] = stage.size(), pixel = at ? [at[0] * width - 0.5, at[1] * height - 0.5] : undefined;
    for (const { probe, pane } of used(state.get())) stage.placeProbe(probe, pane, pixel);
  }

  segunc.panes = {
    show, draw, place, point,
    elements: panes.map(({ pane }) => pane),
    next: () => state.set({ panes: String(COUNTS[(COUNTS.indexOf(Number(state.get().panes)) + 1) % COUNTS.length]) }),
  };
  grid.append(...panes.map(({ pane }) => pane));
})(segunc);
