"use strict";
/* One key for everything, and the sheet that lists them. */
(function (segunc) {
  const { element, state, frame, regions, timeline, stage, probe, layers } = segunc;
  const help = /** @type {HTMLDialogElement} */ (document.getElementById("help"));
  const inFrame = () => state.get().view === "frame";
  const judged = () =>
    inFrame() || state.get().view === "alarms" || segunc.gallery.focusedFrame() !== null;
  const judge = (verdict) =>
    state.get().view === "alarms"
      ? segunc.alarms.judge(verdict)
      : frame.judge(verdict, inFrame() ? undefined : segunc.gallery.focusedFrame());
  /* Write the note on the frame that is seen, or on that of the chosen alarm or card. */
  function writeNote() {
    const { view } = state.get();
    if (view === "frame") frame.focusNote();
    else if (view === "alarms") segunc.alarms.writeNote();
    else segunc.gallery.writeNote();
  }

  const show = (view) => () => state.set({ view });
  const nudge = (field, by, low, high) => () =>
    state.set({
      [field]: Math.min(high, Math.max(low, Number((state.get()[field] + by).toFixed(2)))),
    });

  /* What verdicts on a flagged region mean that covers more than an object, or less. */
  const OF_REGIONS = {
    "true-alarm": "; a region that covers an object is true, however large it is",
    missed: "; on a flagged region: it covers only a part of an object, and the rest was missed",
  };

  /* What a verdict is for: a region or an alarm is never "nothing wrong". */
  const judgedWords = (verdict) =>
    Object.hasOwn(segunc.verdicts.REGION_WORDS, verdict)
      ? `on the frame, the chosen region, an alarm, or a card${OF_REGIONS[verdict] ?? ""}`
      : "on the frame or a card";

  /* Keys in the order of the sheet. Without `act` a key is only listed there; without `where` it
     works everywhere. */
  const SHORTCUTS = [
    { group: "Page", keys: ["?"], words: "this sheet", act: () => toggleHelp() },
    {
      group: "Regions",
      keys: ["Escape"],
      words: "while boxing: no box",
      act: () => frame.dropBox(),
      where: () => inFrame() && state.get().marking,
    },
    {
      group: "Regions",
      keys: ["Escape"],
      words: "no region is chosen",
      act: () => state.set({ region: null }),
      where: () => inFrame() && state.get().region !== null,
    },
    { group: "Page", keys: ["g", "Escape"], words: "gallery", act: show("gallery") },
    {
      group: "Page",
      keys: ["w"],
      words: "alarms: the strongest flagged regions of all frames",
      act: () => {
        state.set({ view: "alarms" });
        segunc.alarms.focusOn();
      },
    },
    { group: "Page", keys: ["i"], words: "the run", act: show("run") },
    {
      group: "Page",
      keys: ["/"],
      words: "search",
      act: () => {
        state.set({ view: "gallery" });
        document.getElementById("search").focus();
      },
    },
    {
      group: "Page",
      keys: ["c"],
      words: "fold or unfold model line, values and timeline (folded in a small window)",
      act: () => segunc.toggleCompact(),
    },
    {
      group: "Gallery",
      keys: ["Arrows"],
      words: "move between frames, Enter opens; Home, End, Page Up, Page Down",
    },
    {
      group: "Gallery",
      keys: ["x"],
      words: "show or hide the other frames of this moment",
      act: () => segunc.gallery.toggleMoment(),
      where: () => segunc.gallery.focusedFrame() !== null,
    },
    { group: "Time", keys: [" "], words: "play or pause", act: () => timeline.togglePlay() },
    { group: "Time", keys: ["{"], words: "slower", act: () => timeline.faster(-1) },
    { group: "Time", keys: ["}"], words: "faster", act: () => timeline.faster(1) },
    {
      group: "Time",
      keys: [","],
      words: "frame before, in source order",
      act: () => timeline.go(now() - 1),
    },
    {
      group: "Time",
      keys: ["."],
      words: "frame after, in source order",
      act: () => timeline.go(now() + 1),
    },
    { group: "Time", keys: ["["], words: "peak before", act: () => timeline.jump(-1) },
    { group: "Time", keys: ["]"], words: "peak after", act: () => timeline.jump(1) },
    {
      group: "Frame",
      keys: ["j"],
      words: "next frame of the gallery",
      act: () => frame.step(1),
      where: inFrame,
    },
    {
      group: "Frame",
      keys: ["k"],
      words: "previous frame of the gallery",
      act: () => frame.step(-1),
      where: inFrame,
    },
    {
      group: "Frame",
      keys: ["y"],
      words: "next frame without a verdict",
      act: () => frame.nextOpen(),
      where: inFrame,
    },
    {
      group: "Alarms",
      keys: ["y"],
      words: "next alarm without a verdict",
      act: () => segunc.alarms.nextOpen(),
      where: () => state.get().view === "alarms",
    },
    {
      group: "Alarms",
      keys: ["Arrows"],
      words: "move between alarms, Enter opens the frame; j, k, Home, End",
    },
    {
      group: "Frame",
      keys: ["Arrows"],
      words: "on the picture: move the probe, with Shift by ten pixels",
    },
    {
      group: "Frame",
      keys: ["p"],
      words: "to the picture",
      act: () => stage.element.focus(),
      where: inFrame,
    },
    {
      group: "Frame",
      keys: ["+", "="],
      words: "zoom in",
      act: () => stage.zoomTo(state.get().zoom * 1.5, probe.pinned() ?? undefined),
      where: inFrame,
    },
    {
      group: "Frame",
      keys: ["-"],
      words: "zoom out",
      act: () => stage.zoomTo(state.get().zoom / 1.5),
      where: inFrame,
    },
    {
      group: "Frame",
      keys: ["f"],
      words: "whole frame",
      act: () => stage.zoomTo(1),
      where: inFrame,
    },
    {
      group: "Layers",
      keys: ["0–9"],
      words: "a layer, by the key beside its name; 0 again tints the image",
    },
    {
      group: "Layers",
      keys: ["'"],
      words: "next layer",
      act: () => frame.nextLayer(1),
      where: inFrame,
    },
    {
      group: "Layers",
      keys: [";"],
      words: "layer before",
      act: () => frame.nextLayer(-1),
      where: inFrame,
    },
    {
      group: "Layers",
      keys: ["P"],
      words: "one, two or four panes",
      act: () => stage.nextCount(),
      where: inFrame,
    },
    {
      group: "Layers",
      keys: ["z"],
      words: "less opaque",
      act: nudge("opacity", -0.1, 0, 1),
      where: inFrame,
    },
    {
      group: "Layers",
      keys: ["x"],
      words: "more opaque",
      act: nudge("opacity", 0.1, 0, 1),
      where: inFrame,
    },
    {
      group: "Layers",
      keys: ["o"],
      words: "outline of the labelled anomaly, hidden until you judge",
      act: () => frame.toggle("outline"),
      where: inFrame,
    },
    {
      group: "Layers",
      keys: ["t"],
      words: "outline what is flagged",
      act: () => frame.toggle("flags"),
      where: inFrame,
    },
    {
      group: "Layers",
      keys: ["b"],
      words: "lower threshold",
      act: () => frame.moveThreshold(-0.02),
      where: inFrame,
    },
    {
      group: "Layers",
      keys: ["n"],
      words: "higher threshold",
      act: () => frame.moveThreshold(0.02),
      where: inFrame,
    },
    {
      group: "Regions",
      keys: ["r"],
      words: "next region",
      act: () => regions.step(1),
      where: inFrame,
    },
    {
      group: "Regions",
      keys: ["R"],
      words: "region before",
      act: () => regions.step(-1),
      where: inFrame,
    },
    {
      group: "Regions",
      keys: ["d", "l"],
      words: "box a missed object: drag (or drag with Shift), or go by the two keys below",
      act: () => frame.boxByKeys(),
      where: inFrame,
    },
    {
      group: "Regions",
      keys: ["Arrows"],
      words: "while boxing: move the cross, with Shift by ten pixels",
    },
    {
      group: "Regions",
      keys: ["Enter"],
      words: "while boxing: set a corner at the cross; the second one keeps the box",
      act: () => probe.setCorner(),
      where: () => inFrame() && state.get().marking,
    },
    ...Object.keys(segunc.verdicts.WORDS).map((verdict) => ({
      group: "Verdict",
      keys: [frame.VERDICT_KEYS[verdict]],
      words: `${segunc.verdicts.WORDS[verdict]}: ${judgedWords(verdict)}`,
      act: () => judge(verdict),
      where: judged,
    })),
    {
      group: "Verdict",
      keys: ["Backspace", "Delete"],
      words: "take the verdict back",
      act: () => judge(""),
      where: judged,
    },
    {
      group: "Verdict",
      keys: ["Ctrl+Z"],
      words: "undo a verdict or a note; with Shift, do it again",
    },
    {
      group: "Page",
      keys: ["S"],
      words: "save this view as a picture, with its caption",
      act: () => segunc.save(),
      where: inFrame,
    },
    {
      group: "Verdict",
      keys: ["q"],
      words: "go on to the next unjudged frame after each verdict",
      act: () => frame.toggleOnward(),
    },
    {
      group: "Verdict",
      keys: ["e"],
      words:
        "write a note on the frame, also of a card or an alarm (or press its button); " +
        "Escape leaves it",
      act: writeNote,
      where: () => state.get().view !== "run",
    },
  ];

  const now = () => segunc.table.index(state.get().frame) ?? 0;

  function toggleHelp() {
    if (help.open) {
      help.close();
      return;
    }
    help.showModal();
    help.scrollTop = 0; // the focus may have moved it
  }

  const keyWords = (key) => (key === " " ? "Space" : key);

  /* The keys of a line of the sheet, side by side. */
  function keyList(keys) {
    const list = element("dt");
    for (const key of keys) {
      if (list.hasChildNodes()) list.append(" ");
      list.append(element("kbd", {}, keyWords(key)));
    }
    return list;
  }

  function helpLine({ keys, words }) {
    return element("div", {}, keyList(keys), element("dd", {}, words));
  }

  function helpGroup(group) {
    const lines = SHORTCUTS.filter((shortcut) => shortcut.group === group).map(helpLine);
    return element("section", {}, element("h3", {}, group), element("dl", {}, ...lines));
  }

  function buildHelp() {
    const groups = [...new Set(SHORTCUTS.map(({ group }) => group))];
    const units = Object.entries(segunc.data.page.scores).map(
      ([score, { unit }]) => `${score}: ${unit || "no unit"}`,
    );
    const kept =
      "Verdicts and notes stay in this browser; export them to hand them on. " +
      "The address of the page holds the view.";
    help.replaceChildren(
      element(
        "div",
        { class: "row head" },
        element("h2", { id: "help-title" }, "How this page works"),
        element("button", { type: "button", onclick: toggleHelp }, "Close"),
      ),
      element("ol", { class: "intro" }, ...segunc.intro.map((line) => element("li", {}, line))),
      element("div", { class: "help-groups" }, ...groups.map(helpGroup)),
      element("p", { class: "small" }, units.join("; ")),
      element("p", { class: "small" }, kept),
    );
  }

  /* Undo and redo alone have Ctrl; in a text field they are the field's own. */
  function isUndo(event) {
    const control = event.ctrlKey || event.metaKey;
    return control && event.key.toLowerCase() === "z" && !event.target.matches("textarea, input");
  }

  /* Whether a key is for the browser, for what took it already or for an open dialog. */
  function isForOthers(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return true;
    return document.querySelector("dialog[open]:not(#help)") !== null;
  }

  const isTyping = (target) =>
    target.matches("textarea, select, input:not([type=checkbox], [type=radio], [type=range])");

  function leaveField(field) {
    field.blur();
    document.getElementById("content").focus({ preventScroll: true });
  }

  /* A focused control takes its own keys. */
  function isForControl({ key, target }) {
    return (key === " " || key === "Enter") && target.matches("button, a, input, summary");
  }

  /* Choose the layer of a digit; that of the image, pressed again, tints the image. */
  function chooseLayer(digit) {
    const layer = layers.atKey(digit);
    const tints = layer === "image" && state.get().layer === "image";
    if (layer) frame.chooseLayer(tints ? "overlay" : layer);
    else segunc.announce(`no layer of this page has the key ${digit}`, true);
  }

  /* On a fresh page nothing has the focus: arrows are for what is seen. */
  function isForView({ key, target }) {
    const unfocused = target === document.body || target === document.getElementById("content");
    return unfocused && /^(Arrow|Home$|End$|Page)/.test(key);
  }

  /* Give the focus to what a key moves in; false where the view has nothing to move in. */
  function focusView(key) {
    const { view } = state.get();
    if (inFrame() && key.startsWith("Arrow")) stage.element.focus({ preventScroll: true });
    else if (view === "gallery") segunc.gallery.focusFirst();
    else if (view === "alarms") segunc.alarms.focusOn();
    else return false;
    return true;
  }

  function moveInView(event) {
    if (!focusView(event.key)) return;
    event.preventDefault();
    const { key, shiftKey } = event;
    const again = new KeyboardEvent("keydown", { key, shiftKey, bubbles: true, cancelable: true });
    document.activeElement.dispatchEvent(again);
  }

  /* The shortcut of a key here, undefined where it has none. */
  function shortcutOf(key) {
    return SHORTCUTS.find(
      ({ keys, act, where = () => true }) => act && keys.includes(key) && where(),
    );
  }

  function onKey(event) {
    if (isUndo(event)) {
      event.preventDefault();
      frame.undo(event.shiftKey);
    } else if (isForOthers(event)) {
      // nothing is left to do
    } else if (isTyping(event.target)) {
      if (event.key !== "Escape") return;
      event.preventDefault();
      leaveField(event.target);
    } else if (help.open) {
      if (event.key === "?") toggleHelp(); // Escape closes a dialog by itself
    } else if (!isForControl(event)) {
      press(event);
    }
  }

  /* Do what a key of the page does. */
  function press(event) {
    const digit = /^(?:Digit|Numpad)(\d)$/.exec(event.code);
    if (digit && inFrame()) {
      event.preventDefault();
      chooseLayer(digit[1]);
    } else if (isForView(event)) {
      moveInView(event);
    } else {
      const shortcut = shortcutOf(event.key);
      if (!shortcut) return;
      event.preventDefault();
      shortcut.act();
    }
  }

  function start() {
    buildHelp();
    addEventListener("keydown", onKey);
    document.getElementById("help-button").addEventListener("click", toggleHelp);
  }

  segunc.keys = { start };
})(segunc);
