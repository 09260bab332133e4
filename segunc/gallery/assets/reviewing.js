"use strict";
/* Who judges: asked once, when the first verdict is given, and kept in this browser; and verdicts
   as files: JSON, which is read back, and COCO. */
(function (segunc) {
  const { element, verdicts, table, announce } = segunc;
  const { page } = segunc.data;
  const FORMAT = "segunc-verdicts",
    VERSION = 2;
  const dialog = document.getElementById("reviewer"),
    button = document.getElementById("reviewer-button");
  const input = element("input", {
    type: "text",
    id: "reviewer-name",
    autocomplete: "name",
    "aria-label": "Your name",
    maxlength: 60,
  });
  let waiting = null;

  function ask(then = null, byKey = false) {
    waiting = then;
    input.value = verdicts.reviewer() ?? "";
    dialog.showModal();
    // Whoever judges by keys goes on typing them: they must not land in the name.
    if (byKey) dialog.querySelector("h2").focus();
    else input.focus();
  }

  /* Do something in the reviewer's name, which is asked for first where it is not known. */
  function named(act, byKey = false) {
    if (verdicts.reviewer() === null) ask(act, byKey);
    else act();
  }

  function show() {
    button.textContent = verdicts.reviewer() ? `Reviewer: ${verdicts.reviewer()}` : "Reviewer";
  }

  function download(text, ending) {
    const link = element("a", {
      href: URL.createObjectURL(new Blob([text], { type: "application/json" })),
      download: `verdicts-${[page.title, page.run.slice(0, 6), verdicts.reviewer() || "no-name"].map((part) => part.replace(/[^\p{L}\p{N}._-]+/gu, "_")).join("-")}.${ending}`,
    });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    announce(`${verdicts.all().length} verdicts exported`);
  }

  function asJson() {
    const head = {
      format: FORMAT,
      version: VERSION,
      run: page.run,
      title: page.title,
      tool: page.written,
    };
    return `${JSON.stringify({ ...head, exported: new Date().toISOString(), verdicts: verdicts.all() }, null, 2)}\n`;
  }

  /* The regions that were judged, as annotations of COCO with uncompressed masks (runs down the
     columns); the verdicts are the categories. */
  function asCoco() {
    const regions = verdicts.all().filter(({ region, verdict }) => region && verdict),
      names = Object.keys(verdicts.REGION_WORDS);
    const frames = [...new Set(regions.map(({ frame }) => frame))];
    const images = frames.map((frame, id) => {
      const [height, width] =
        table.size(table.index(frame)) ?? regions.find((one) => one.frame === frame).region.size;
      return { id, file_name: frame, height, width };
    });
    const annotations = regions.map(({ frame, region, verdict, note, reviewer, time }, id) => ({
      id,
      image_id: frames.indexOf(frame),
      category_id: names.indexOf(verdict),
      bbox: region.box,
      area: region.area,
      iscrowd: 0,
      segmentation: { size: region.size, counts: downColumns(region) },
      score: region.value,
      threshold: region.threshold,
      score_name: region.score,
      note,
      reviewer,
      time,
    }));
    return `${JSON.stringify({ images, annotations, categories: names.map((name, id) => ({ id, name })) })}\n`;
  }

  function downColumns({ size: [height, width], mask }) {
    const inside = new Uint8Array(height * width),
      counts = [];
    for (let i = 0; i < mask.length; i += 2) inside.fill(1, mask[i], mask[i] + mask[i + 1]);
    let now = 0,
      length = 0;
    for (let x = 0; x < width; x++) {
      for (let y = 0; y < height; y++) {
        if (inside[y * width + x] === now) length++;
        else {
          counts.push(length);
          now = 1 - now;
          length = 1;
        }
      }
    }
    return [...counts, length];
  }

  const whole = (list, length) =>
    Array.isArray(list) &&
    (length === undefined || list.length === length) &&
    list.every((n) => Number.isInteger(n) && n >= 0);

  /* Whether a region is one of its frame: a box inside of it, and runs that follow each other. */
  function fits(frame, region) {
    if (region === null || region === undefined) return true;
    if (
      !whole(region.box, 4) ||
      !whole(region.size, 2) ||
      !whole(region.mask) ||
      region.mask.length % 2
    )
      return false;
    const [x, y, width, height] = region.box,
      [rows, columns] = region.size,
      size = table.size(table.index(frame));
    return (
      (!size || (size[0] === rows && size[1] === columns)) &&
      x + width <= columns &&
      y + height <= rows &&
      region.mask.every(
        (n, i) =>
          i % 2 ||
          (n + region.mask[i + 1] <= rows * columns &&
            (i === 0 || n >= region.mask[i - 2] + region.mask[i - 1])),
      )
    );
  }

  /* One line on what was taken from the text of an exported file, or why nothing was. */
  function read(text) {
    let content;
    try {
      content = JSON.parse(text);
    } catch {
      return "The file is no JSON; export it again.";
    }
    if (
      content?.format !== FORMAT ||
      ![1, VERSION].includes(content.version) ||
      !Array.isArray(content.verdicts)
    ) {
      return "The file holds no verdicts of this page's form; export it again.";
    }
    if (content.run !== page.run)
      return `The file holds verdicts on another run (${content.run}); nothing was taken.`;
    const text_ = (value) => typeof value === "string";
    const known = content.verdicts.filter(
      (v) =>
        v &&
        text_(v.note) &&
        text_(v.time) &&
        text_(v.reviewer ?? "") &&
        table.index(v.frame) !== null &&
        (v.verdict === "" || v.verdict in (v.region ? verdicts.REGION_WORDS : verdicts.WORDS)) &&
        fits(v.frame, v.region),
    );
    const taken = verdicts.add(known),
      left = content.verdicts.length - known.length;
    const disagreed = [...new Set(known.map(({ frame }) => frame))].filter(
      verdicts.disagree,
    ).length;
    return (
      `${taken} verdicts taken, ${known.length - taken} were here or newer${left ? `, ${left} are damaged or of frames that are not here` : ""}.` +
      (disagreed
        ? ` Reviewers disagree on ${disagreed} frames; both verdicts are kept, and the gallery can show these frames alone.`
        : "")
    );
  }

  function start(say) {
    const form = element(
      "form",
      { method: "dialog" },
      element("h2", { id: "reviewer-title", tabindex: "-1" }, "Who judges?"),
      element(
        "p",
        { class: "small" },
        "The name stands with each of your verdicts, so that those of several reviewers can be compared. It stays in this browser and in what you export; it may be left empty.",
      ),
      element("p", { class: "row" }, input, element("button", { type: "submit" }, "Go on")),
    );
    dialog.append(form);
    form.addEventListener("submit", () => {
      verdicts.setName(input.value);
      const act = waiting;
      waiting = null;
      dialog.addEventListener("close", () => act?.(), { once: true });
    });
    dialog.addEventListener("cancel", () => {
      waiting = null;
    });
    button.addEventListener("click", () => ask());
    verdicts.onChange(show);
    show();
    const file = document.getElementById("import-file");
    document
      .getElementById("export-json")
      .addEventListener("click", () => download(asJson(), "json"));
    document
      .getElementById("export-coco")
      .addEventListener("click", () => download(asCoco(), "coco.json"));
    document.getElementById("import").addEventListener("click", () => file.click());
    file.addEventListener("change", async () => {
      for (const one of file.files) say(read(await one.text()));
      file.value = "";
    });
  }

  segunc.reviewing = { start, named };
})(segunc);
