"use strict";
/* Who judges: asked once, when the first verdict is given, and kept in this browser; and verdicts
   as files: JSON, which is read back, and COCO. */
(function (segunc) {
  const { element, table, verdicts, announce } = segunc;
  const { page } = segunc.data;
  const FORMAT = "segunc-verdicts";
  const VERSION = 2;
  const LONGEST_NAME = 60; // characters
  const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("reviewer"));
  const button = document.getElementById("reviewer-button");
  const input = element("input", {
    type: "text",
    id: "reviewer-name",
    autocomplete: "name",
    maxlength: LONGEST_NAME,
  });
  /* What is done in the reviewer's name once it is known, and what where it is not given. */
  let waiting = null;

  function ask(act = null, giveUp = () => {}) {
    waiting = act && { act, giveUp };
    input.value = verdicts.reviewer() ?? "";
    dialog.showModal();
    input.focus();
    input.select();
  }

  /* Do something in the reviewer's name, which is asked for first where it is not known. */
  function named(act, giveUp) {
    if (verdicts.reviewer() === null) ask(act, giveUp);
    else act();
  }

  function showButton() {
    const name = verdicts.reviewer();
    button.textContent = name ? `Reviewer: ${name}` : "Reviewer";
    button.title = name ?? "";
  }

  const fileWord = (text) => text.replace(/[^\p{L}\p{N}._-]+/gu, "_");

  const counted = (number, one, many) => `${number} ${number === 1 ? one : many}`;

  /* How many of the exported entries are of other reviewers. */
  function othersWords(list) {
    const mine = verdicts.reviewer() ?? "";
    const others = list.filter(({ reviewer }) => reviewer !== mine).length;
    return others ? `, ${others} of them of other reviewers` : "";
  }

  /* What is exported as JSON: an entry without a verdict is a note. */
  function sayJson() {
    const list = verdicts.all();
    const notes = list.filter(({ verdict }) => !verdict).length;
    const words = [];
    if (list.length > notes || !notes) {
      words.push(counted(list.length - notes, "verdict", "verdicts"));
    }
    if (notes) words.push(counted(notes, "note without a verdict", "notes without a verdict"));
    announce(`${words.join(" and ")} exported${othersWords(list)}`, true);
  }

  /* What COCO can hold are regions; the rest is said, so that nobody takes the file for all. */
  function sayCoco() {
    const list = verdicts.all();
    const regions = list.filter(isAnnotation);
    const words = `${counted(regions.length, "region", "regions")} exported${othersWords(regions)}`;
    const frames = list.filter(({ region, verdict }) => !region && verdict).length;
    const notes = list.length - regions.length - frames;
    const rest = [];
    if (frames) rest.push(counted(frames, "verdict on a frame", "verdicts on frames"));
    if (notes) rest.push(counted(notes, "note", "notes"));
    const is = frames + notes === 1 ? "is" : "are";
    announce(rest.length ? `${words}; ${rest.join(" and ")} ${is} in the JSON alone` : words, true);
  }

  function download(text, ending) {
    const words = [page.title, page.run.slice(0, 6), verdicts.reviewer() || "no-name"];
    const link = element("a", {
      href: URL.createObjectURL(new Blob([text], { type: "application/json" })),
      download: `verdicts-${words.map(fileWord).join("-")}.${ending}`,
    });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function asJson() {
    const content = {
      format: FORMAT,
      version: VERSION,
      run: page.run,
      title: page.title,
      tool: page.written,
      exported: new Date().toISOString(),
      verdicts: verdicts.all(),
    };
    return `${JSON.stringify(content, null, 2)}\n`;
  }

  const isAnnotation = ({ region, verdict }) => Boolean(region && verdict);

  /* The regions that were judged, as annotations of COCO with uncompressed masks (runs down the
     columns); the verdicts are the categories. */
  function asCoco() {
    const regions = verdicts.all().filter(isAnnotation);
    const names = Object.keys(verdicts.REGION_WORDS);
    const frames = [...new Set(regions.map(({ frame }) => frame))];
    // Ids begin at 1, because tools take 0 for nothing.
    const images = frames.map((frame, place) => {
      const [height, width] = regions.find((entry) => entry.frame === frame).region.size;
      return { id: place + 1, file_name: table.file(frame), height, width };
    });
    const annotations = regions.map(({ frame, region, verdict, note, reviewer, time }, place) => ({
      id: place + 1,
      image_id: frames.indexOf(frame) + 1,
      category_id: names.indexOf(verdict) + 1,
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
    const categories = names.map((name, place) => ({ id: place + 1, name }));
    return `${JSON.stringify({ images, annotations, categories })}\n`;
  }

  function downColumns({ size: [height, width], mask }) {
    const inside = new Uint8Array(height * width);
    for (let i = 0; i < mask.length; i += 2) inside.fill(1, mask[i], mask[i] + mask[i + 1]);
    const counts = [];
    let now = 0;
    let length = 0;
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

  /* One line on what was taken from the text of an exported file, or why nothing was. */
  function read(text) {
    let content;
    try {
      content = JSON.parse(text);
    } catch {
      return "The file is no JSON; export it again.";
    }
    const ours = content?.format === FORMAT && [1, VERSION].includes(content.version);
    if (!ours || !Array.isArray(content.verdicts)) {
      return "The file holds no verdicts of this page's form; export it again.";
    }
    if (content.run !== page.run) {
      return `The file holds verdicts on another run (${content.run}); nothing was taken.`;
    }
    const cleaned = content.verdicts.map(verdicts.clean).filter(Boolean);
    const known = cleaned.filter(verdicts.isOnImage);
    const left = {
      images: cleaned.length - known.length,
      rest: content.verdicts.length - cleaned.length,
    };
    return sayTaken(known, verdicts.add(known), left);
  }

  /* That an import has ended judging without the verdicts of others; empty where it has not. */
  function openedWords() {
    const isLeft = segunc.data.frames.some(({ name }) => !verdicts.judged(name));
    if (!verdicts.isOpenByOthers() || !isLeft) return "";
    return (
      "Two other reviewers have judged now, so the page shows their verdicts and the labels also " +
      "on frames that you have not judged. To judge these unseen, use a page of " +
      "segunc review --blind."
    );
  }

  function sayTaken(known, taken, left) {
    const old = known.length - taken;
    const words = [`${counted(taken, "verdict", "verdicts")} taken`];
    if (old) words.push(`${old} were already here, or are older than those here`);
    if (left.images) words.push(`${left.images} are on other images of these frames`);
    if (left.rest) words.push(`${left.rest} are damaged or of frames that are not here`);
    const frames = [...new Set(known.map(({ frame }) => frame))];
    const disputed = disputedWords(frames);
    if (!disputed) return `${words.join(", ")}.`;
    return (
      `${words.join(", ")}. Reviewers disagree on ${disputed}; both verdicts are kept. ` +
      "The gallery and the list of alarms have a filter for these alone."
    );
  }

  /* On how many frames and regions reviewers disagree; empty for none. */
  function disputedWords(names) {
    const whole = names.filter(verdicts.disagreeOnWhole).length;
    const parts = names.reduce((sum, name) => sum + verdicts.disputedRegions(name).length, 0);
    const words = [];
    if (whole) words.push(counted(whole, "frame", "frames"));
    if (parts) words.push(counted(parts, "region", "regions"));
    return words.join(" and on ");
  }

  function buildDialog() {
    const about =
      "Your name stands with each of your verdicts, so that those of several reviewers can be " +
      "compared. It stays in this browser and in what you export. Without one, your verdicts " +
      "cannot be told from those of others without a name.";
    const cancel = element("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
    const form = element(
      "form",
      { method: "dialog" },
      element("h2", { id: "reviewer-title" }, "Who judges?"),
      element("p", { class: "small" }, about),
      element("label", { class: "row" }, "Your name", input),
      element("p", { class: "row at-end" }, cancel, element("button", { type: "submit" }, "Go on")),
    );
    dialog.append(form);
    form.addEventListener("submit", () => {
      verdicts.setName(input.value);
      const act = waiting?.act;
      waiting = null;
      dialog.addEventListener("close", () => act?.(), { once: true });
    });
    dialog.addEventListener("close", () => {
      if (!waiting) return;
      waiting.giveUp();
      waiting = null;
      announce("no name was given, so nothing was judged", true);
    });
  }

  /* `say` shows a notice; `onImport` is called after files were read. */
  function start(say, onImport) {
    buildDialog();
    button.addEventListener("click", () => ask());
    verdicts.onChange(showButton);
    showButton();
    const file = /** @type {HTMLInputElement} */ (document.getElementById("import-file"));
    const onClick = (id, act) => document.getElementById(id).addEventListener("click", act);
    onClick("export-json", () => {
      download(asJson(), "json");
      sayJson();
    });
    onClick("export-coco", () => {
      download(asCoco(), "coco.json");
      sayCoco();
    });
    onClick("import", () => file.click());
    file.addEventListener("change", async () => {
      const lines = [];
      const wasOpen = verdicts.isOpenByOthers();
      for (const chosen of file.files) lines.push(read(await chosen.text()));
      if (!wasOpen) lines.push(openedWords());
      say(lines.join(" "), "import");
      onImport();
      file.value = "";
    });
  }

  segunc.reviewing = { start, named };
})(segunc);
