"use strict";
/* The picture of one frame: image, up to two layers with a wipe between them, flagged pixels, outline, probe. */
(function (segunc) {
  const { element, table, state, layers, maps } = segunc;
  const SVG = "http://www.w3.org/2000/svg";
  const stage = document.getElementById("stage");
  const world = element("div", { id: "world", class: "world" });
  let photo = element("img", { id: "photo", alt: "" });
  const sides = ["left", "right"].map((side) => ({
    side,
    layer: element("canvas", { class: "layer", id: `layer-${side}` }),
    flags: Object.assign(document.createElementNS(SVG, "svg"), { id: `flags-${side}` }),
    name: element("p", { class: `side-name ${side}` }),
    painted: "", flagged: "",
  }));
  const outline = document.createElementNS(SVG, "svg"), boxes = document.createElementNS(SVG, "svg");
  const probe = element("div", { id: "probe", class: "probe", "aria-hidden": "true" });
  const handle = element("div", {
    id: "wipe-handle", role: "slider", tabindex: "0", "aria-label": "Wipe between two layers",
    "aria-valuemin": "0", "aria-valuemax": "100",
  });
  const message = element("p", { id: "stage-message", role: "alert" });
  let size = [1, 1], shown = null, outlined = "", token = 0;

  /* Screen pixels of a frame pixel, and where the frame's corner lies on the stage, or another pane. */
  function geometry(pane = stage) {
    const current = state.get(), [height, width] = size;
    const scale = current.zoom * Math.min(pane.clientWidth / width, pane.clientHeight / height) || 1;
    return {
      scale,
      left: pane.clientWidth / 2 - current.x * width * scale,
      top: pane.clientHeight / 2 - current.y * height * scale,
    };
  }

  function placeWorld(world, pane) {
    const [height, width] = size, { scale, left, top } = geometry(pane);
    world.style.width = `${width}px`;
    world.style.height = `${height}px`;
    world.style.transform = `translate(${left}px, ${top}px) scale(${scale})`;
    world.classList.toggle("magnified", scale >= 2);
    world.style.setProperty("--screen-pixel", `${1 / scale}px`);
  }

  /* The cross at the probe, or (on the panes beside) below the pointer. */
  function placeProbe(cross, pane, at = state.get().probe?.split(",").map(Number)) {
    const [height, width] = size, { scale, left, top } = geometry(pane);
    cross.hidden = !at || !(at[0] < width && at[1] < height);
    if (at) cross.style.transform = `translate(${left + (at[0] + 0.5) * scale}px, ${top + (at[1] + 0.5) * scale}px)`;
  }

  function place() {
    const current = state.get(), [, width] = size, { scale, left } = geometry();
    placeWorld(world, stage);
    const cut = Math.min(width, Math.max(0, (current.split * stage.clientWidth - left) / scale));
    const clips = current.wipe ? [`inset(0 ${width - cut}px 0 0)`, `inset(0 0 0 ${cut}px)`] : ["none", "none"];
    sides.forEach(({ side, layer, flags, name }, i) => {
      const used = side === "left" || current.wipe;
      layer.style.clipPath = flags.style.clipPath = clips[i];
      layer.style.opacity = current.opacity;
      layer.hidden = !used || !sides[i].painted;
      flags.style.display = used && current.flags ? "" : "none";
      name.hidden = !current.wipe;
    });
    handle.hidden = !current.wipe;
    handle.style.left = `${current.split * 100}%`;
    handle.setAttribute("aria-valuenow", Math.round(current.split * 100));
    outline.style.display = current.outline ? "" : "none";
    placeProbe(probe, stage);
    segunc.panes?.place(); // a window may be measured before all parts of the page are there
  }

  /* What lies on each side: the layer asked for, or what the frame has instead. */
  function layerOf(side, index, current) {
    const wanted = side === "left" ? current.layer : current.right ?? "image";
    if (layers.every.includes(wanted) && layers.available(index, wanted)) return wanted;
    return layers.every.find((layer) => layers.available(index, layer)) ?? null;
  }

  const flaggedContent = (layer, current) => `${layer ? layers.modelOf(layer) : ""}${current.score}`;

  /* Bring a frame onto the stage; resolves when it is seen, false where another came in between. */
  async function show(index) {
    const mine = ++token, current = state.get(), folder = table.place(index), failures = [];
    const get = (content) => (table.has(index, content) ? maps.get(folder, content) : Promise.reject(new Error(`this frame has no ${content}`)))
      .catch((error) => { failures.push(error.message); return null; });
    const wanted = sides.map(({ side }) => {
      const layer = side === "left" || current.wipe ? layerOf(side, index, current) : null;
      const flagged = current.flags && current.threshold !== null && current.score && (side === "left" || current.wipe)
        ? flaggedContent(layer, current) : null;
      return { layer, flagged };
    });
    const [picture, label, ...parts] = await Promise.all([
      loadPhoto(index),
      current.outline && table.objects(index) ? get("label/anomaly") : null,
      ...wanted.map(async ({ layer, flagged }) => ({
        maps: layer ? await Promise.all(layers.needs(layer).map(get)) : [],
        flagged: flagged ? await get(flagged) : null,
      })),
    ]);
    if (mine !== token) return false;
    size = table.size(index) ?? [picture?.naturalHeight || 1, picture?.naturalWidth || 1];
    if (picture !== photo) {
      photo.replaceWith(picture);
      photo = picture;
    }
    sides.forEach((side, i) => paintSide(side, index, wanted[i], parts[i], current, failures));
    paintOutline(label, index);
    photo.classList.toggle("under-colours", wanted.some(({ layer }) => layer && layer !== "image"));
    message.textContent = failures.join("; ");
    message.hidden = !failures.length;
    shown = index;
    place();
    return true;
  }

  function paintSide(side, index, { layer, flagged }, part, current, failures) {
    side.name.textContent = layer ? layers.title(layer) : "";
    const key = layer && layer !== "image" ? `${index}/${layer}` : "";
    if (key !== side.painted) {
      side.painted = "";
      if (key && part.maps.every(Boolean)) {
        try {
          layers.paint(side.layer, layer, part.maps);
          side.painted = key;
        } catch (error) {
          failures.push(error.message);
        }
      }
    }
    const flagKey = flagged && part.flagged ? `${index}/${flagged}/${current.threshold}` : "";
    if (flagKey !== side.flagged) {
      const map = part.flagged;
      edges(side.flags, flagKey ? map : null, (place) => map.value(place) >= current.threshold);
    }
    side.flagged = flagKey;
  }

  const KEPT = 12; // pictures
  const pictures = new Map(); // file -> the promise of a decoded picture, oldest first

  function loadPhoto(index) {
    const file = table.has(index, "image") ? `frames/${table.folder(index)}/image.jpg` : "";
    if ((photo.getAttribute("src") ?? "") === file) return photo;
    const found = pictures.get(file) ?? decoded(file);
    pictures.set(file, found);
    if (pictures.size > KEPT) pictures.delete(pictures.keys().next().value);
    return found;
  }

  async function decoded(file) {
    const picture = element("img", { id: "photo", alt: "", draggable: "false", hidden: !file });
    if (!file) return picture;
    picture.src = file;
    await picture.decode().catch(() => { picture.hidden = true; });
    return picture;
  }

  /* Decode what a frame shows before it is asked for. */
  function prepare(index) {
    const current = state.get();
    loadPhoto(index);
    const asked = sides.filter(({ side }) => side === "left" || current.wipe).map(({ side }) => layerOf(side, index, current));
    if (current.flags && current.score) asked.push(current.score);
    for (const layer of asked.filter((one) => one && layers.available(index, one))) {
      for (const content of layers.needs(layer)) maps.get(table.place(index), content).catch(() => {}); // said when it is shown
    }
  }

  function paintOutline(label, index) {
    const key = label ? String(index) : "";
    if (key !== outlined) edges(outline, label, (place) => label.codes[place] === 1);
    outlined = key;
  }

  /* The edges between pixels that `holds` and the rest as one path, sharp at every zoom: dark below, light above. */
  function edges(drawing, map, holds) {
    drawing.replaceChildren();
    if (!map) return;
    // In pixels of the frame, of which a condensed map has fewer.
    const { width, height } = map, steps = [], across = size[1] / width, down = size[0] / height;
    // One row and one column of nothing around what holds, so that every edge lies between two places.
    const wide = width + 2, mask = new Uint8Array(wide * (height + 2));
    for (let y = 0, place = 0; y < height; y++) {
      for (let x = 0; x < width; x++, place++) if (holds(place)) mask[(y + 1) * wide + x + 1] = 1;
    }
    const runs = (lines, length, start, along, back, draw) => {
      for (let line = 0; line <= lines; line++) {
        for (let at = 0, place = start(line); at < length; at++, place += along) {
          if (mask[place] === mask[place - back]) continue;
          const from = at;
          for (; at < length && mask[place] !== mask[place - back]; at++) place += along;
          steps.push(draw(line, from, at));
        }
      }
    };
    runs(height, width, (y) => (y + 1) * wide + 1, 1, wide, (y, from, to) => `M${from * across} ${y * down}H${to * across}`);
    runs(width, height, (x) => wide + x + 1, wide, 1, (x, from, to) => `M${x * across} ${from * down}V${to * down}`);
    drawing.setAttribute("viewBox", `0 0 ${size[1]} ${size[0]}`);
    for (const name of ["edge-dark", "edge-light"]) {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", name);
      path.setAttribute("d", steps.join(""));
      drawing.append(path);
    }
  }

  /* The place on the frame below a place on the screen, as shares of its width and height. */
  function framePlace(event) {
    const pane = event.currentTarget, box = pane.getBoundingClientRect(), { scale, left, top } = geometry(pane);
    return [(event.clientX - box.left - left) / scale / size[1], (event.clientY - box.top - top) / scale / size[0]];
  }

  /* Zoom so that a point of the frame (shares; its middle when not given) stays where it is. */
  function zoomTo(zoom, point) {
    const current = state.get();
    const wanted = Math.min(64, Math.max(1, zoom)), keep = point ?? [current.x, current.y];
    const ratio = current.zoom / wanted;
    const moved = (middle, at) => Math.min(1, Math.max(0, at + (middle - at) * ratio));
    state.set(wanted === 1 ? { zoom: 1, x: 0.5, y: 0.5 } : { zoom: wanted, x: moved(current.x, keep[0]), y: moved(current.y, keep[1]) });
  }

  outline.id = "outline";
  boxes.id = "boxes";
  for (const drawing of [outline, boxes, ...sides.map(({ flags }) => flags)]) {
    drawing.classList.add("drawing", ...(drawing === outline || drawing === boxes ? [] : ["flags"]));
    drawing.setAttribute("preserveAspectRatio", "none");
    drawing.setAttribute("aria-hidden", "true");
  }
  stage.tabIndex = 0;
  stage.setAttribute("role", "application");
  stage.setAttribute("aria-label", "Picture of the frame. Arrow keys move the probe, plus and minus zoom.");
  world.append(photo, ...sides.flatMap(({ layer, flags }) => [layer, flags]), outline, boxes);
  stage.append(world, probe, ...sides.map(({ name }) => name), handle, message);
  new ResizeObserver(place).observe(stage);

  segunc.stage = {
    show, prepare, place, placeWorld, placeProbe, framePlace, zoomTo, layerOf, handle, boxes, element: stage,
    size: () => size,
    /* What is drawn over the picture: of the left side where there are two. */
    drawings: () => [...(state.get().flags ? [sides[0].flags] : []), ...(state.get().outline ? [outline] : []), boxes],
    shown: () => shown,
    scale: () => geometry().scale,
  };
})(segunc);
