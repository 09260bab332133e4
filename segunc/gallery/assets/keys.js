"use strict";
/* One key for everything, and the sheet that lists them. */
(function (segunc) {
  const { element, state, frame, regions, timeline, stage, probe, layers } = segunc;
  const help = document.getElementById("help");
  const inFrame = () => state.get().view === "frame";
  const judged = () =>
    inFrame() || state.get().view === "alarms" || segunc.gallery.focusedFrame() !== null;
  const judge = (verdict) =>
    state.get().view === "alarms"
      ? segunc.alarms.judge(verdict)
      : frame.judge(verdict, inFrame() ? undefined : segunc.gallery.focusedFrame());
  const show = (view) => () => state.set({ view });
  const nudge = (field, by, low, high) => () =>
    state.set({
      [field]: Math.min(high, Math.max(low, Number((state.get()[field] + by).toFixed(2)))),
    });

  /* Group, keys, what they do, the act, and where it works (everywhere if not said). */
  const KEYS = [
    ["Page", ["?"], "this sheet", () => toggleHelp()],
    [
      "Regions",
      ["Escape"],
      "no region is chosen",
      () => state.set({ region: null, marking: false }),
      () => inFrame() && (state.get().region !== null || state.get().marking),
    ],
    ["Page", ["g", "Escape"], "gallery", show("gallery")],
    [
      "Page",
      ["w"],
      "alarms: all flagged regions, the strongest first",
      () => {
        state.set({ view: "alarms" });
        segunc.alarms.focusOn();
      },
    ],
    ["Page", ["i"], "the run", show("run")],
    [
      "Page",
      ["/"],
      "search",
      () => {
        state.set({ view: "gallery" });
        document.getElementById("search").focus();
      },
    ],
    [
      "Page",
      ["c"],
      "fold or unfold model line, values and timeline (folded in a small window)",
      () => segunc.toggleCompact(),
    ],
    [
      "Gallery",
      ["Arrows"],
      "move between frames, Enter opens; Home, End, Page Up, Page Down",
      null,
    ],
    [
      "Gallery",
      ["x"],
      "show or hide the other frames of this moment",
      () => segunc.gallery.toggleMoment(),
      () => segunc.gallery.focusedFrame() !== null,
    ],
    ["Time", [" "], "play or pause", () => timeline.togglePlay()],
    ["Time", ["{"], "slower", () => timeline.faster(-1)],
    ["Time", ["}"], "faster", () => timeline.faster(1)],
    ["Time", [","], "frame before, in source order", () => timeline.go(now() - 1)],
    ["Time", ["."], "frame after, in source order", () => timeline.go(now() + 1)],
    ["Time", ["["], "peak before", () => timeline.jump(-1)],
    ["Time", ["]"], "peak after", () => timeline.jump(1)],
    ["Frame", ["j"], "next frame of the gallery", () => frame.step(1), inFrame],
    ["Frame", ["k"], "previous frame of the gallery", () => frame.step(-1), inFrame],
    ["Frame", ["y"], "next frame without a verdict", () => frame.nextOpen(), inFrame],
    ["Frame", ["Arrows"], "on the picture: move the probe, with Shift by ten pixels", null],
    ["Frame", ["p"], "to the picture", () => stage.element.focus(), inFrame],
    [
      "Frame",
      ["+", "="],
      "zoom in",
      () => stage.zoomTo(state.get().zoom * 1.5, probe.pinned() ?? undefined),
      inFrame,
    ],
    ["Frame", ["-"], "zoom out", () => stage.zoomTo(state.get().zoom / 1.5), inFrame],
    ["Frame", ["f"], "whole frame", () => stage.zoomTo(1), inFrame],
    ["Layers", ["0–9"], "a layer, by the key beside its name; 0 again tints the image", null],
    ["Layers", ["'"], "next layer", () => frame.nextLayer(1), inFrame],
    ["Layers", [";"], "layer before", () => frame.nextLayer(-1), inFrame],
    ["Layers", ["P"], "one, two or four panes", () => stage.nextCount(), inFrame],
    ["Layers", ["z"], "less opaque", nudge("opacity", -0.1, 0, 1), inFrame],
    ["Layers", ["x"], "more opaque", nudge("opacity", 0.1, 0, 1), inFrame],
    [
      "Layers",
      ["o"],
      "outline of the labelled anomaly, hidden until you judge",
      () => frame.toggle("outline"),
      inFrame,
    ],
    ["Layers", ["t"], "outline what is flagged", () => frame.toggle("flags"), inFrame],
    ["Layers", ["b"], "lower threshold", () => frame.moveThreshold(-0.02), inFrame],
    ["Layers", ["n"], "higher threshold", () => frame.moveThreshold(0.02), inFrame],
    ["Regions", ["r"], "next region", () => regions.step(1), inFrame],
    ["Regions", ["R"], "region before", () => regions.step(-1), inFrame],
    [
      "Regions",
      ["l"],
      "drag a box around a missed object (or drag with Shift)",
      () => frame.toggle("marking"),
      inFrame,
    ],
    ...Object.keys(segunc.verdicts.WORDS).map((verdict) => [
      "Verdict",
      [frame.VERDICT_KEYS[verdict]],
      `${segunc.verdicts.WORDS[verdict]}: on the frame, the chosen region, an alarm, or a card`,
      () => judge(verdict),
      judged,
    ]),
    ["Verdict", ["Backspace", "Delete"], "take the verdict back", () => judge(""), judged],
    ["Verdict", ["Ctrl+Z"], "undo a verdict or a note; with Shift, do it again", null],
    ["Page", ["S"], "save this view as a picture, with its caption", () => segunc.save(), inFrame],
    [
      "Verdict",
      ["q"],
      "go on to the next unjudged frame after each verdict",
      () => frame.toggleOnward(),
    ],
    ["Verdict", ["e"], "write a note, Escape leaves it", () => frame.focusNote(), inFrame],
  ];

  const now = () => segunc.table.index(state.get().frame) ?? 0;

  function toggleHelp() {
    if (help.open) return help.close();
    help.showModal();
    help.scrollTop = 0; // the focus may have moved it
  }

  function buildHelp() {
    const groups = [...new Set(KEYS.map(([group]) => group))];
    const words = (key) => ({ " ": "Space" })[key] ?? key;
    help.replaceChildren(
      element(
        "div",
        { class: "row head" },
        element("h2", { id: "help-title" }, "How this page works"),
        element("button", { type: "button", onclick: toggleHelp }, "Close"),
      ),
      element("ol", { class: "intro" }, ...segunc.intro.map((line) => element("li", {}, line))),
      element(
        "div",
        { class: "help-groups" },
        ...groups.map((group) =>
          element(
            "section",
            {},
            element("h3", {}, group),
            element(
              "dl",
              {},
              ...KEYS.filter(([g]) => g === group).map(([, keys, text]) =>
                element(
                  "div",
                  {},
                  element(
                    "dt",
                    {},
                    ...keys.flatMap((key, i) => [i ? " " : "", element("kbd", {}, words(key))]),
                  ),
                  element("dd", {}, text),
                ),
              ),
            ),
          ),
        ),
      ),
      element(
        "p",
        { class: "small" },
        Object.entries(segunc.data.page.scores)
          .map(([score, { unit }]) => `${score}: ${unit || "no unit"}`)
          .join("; "),
      ),
      element(
        "p",
        { class: "small" },
        "Verdicts and notes stay in this browser; export them to hand them on. " +
          "The address of the page holds the view.",
      ),
    );
  }

  function onKey(event) {
    if (
      (event.ctrlKey || event.metaKey) &&
      event.key.toLowerCase() === "z" &&
      !event.target.matches("textarea, input")
    ) {
      event.preventDefault();
      return frame.undo(event.shiftKey);
    }
    if (
      event.ctrlKey ||
      event.altKey ||
      event.metaKey ||
      event.defaultPrevented ||
      document.querySelector("dialog[open]:not(#help)")
    )
      return;
    const { target } = event;
    const typing = target.matches(
      "textarea, select, input:not([type=checkbox], [type=radio], [type=range])",
    );
    if (typing) {
      if (event.key === "Escape") {
        event.preventDefault();
        target.blur();
        document.getElementById("content").focus({ preventScroll: true });
      }
      return;
    }
    if (help.open) {
      if (event.key === "?") toggleHelp();
      return; // Escape closes a dialog by itself
    }
    // A focused control takes its own keys.
    if ((event.key === " " || event.key === "Enter") && target.matches("button, a, input, summary"))
      return;
    const digit = /^(?:Digit|Numpad)(\d)$/.exec(event.code);
    if (digit && inFrame()) {
      event.preventDefault();
      const layer = layers.atKey(digit[1]);
      const tints = layer === "image" && state.get().layer === "image";
      if (layer) frame.chooseLayer(tints ? "overlay" : layer);
      else segunc.announce(`no layer of this page has the key ${digit[1]}`, true);
      return;
    }
    // On a fresh page nothing has the focus: arrows are for what is seen.
    if (
      /^(Arrow|Home$|End$|Page)/.test(event.key) &&
      [document.body, document.getElementById("content")].includes(target)
    ) {
      if (inFrame() && event.key.startsWith("Arrow")) stage.element.focus({ preventScroll: true });
      else if (state.get().view === "gallery") segunc.gallery.focusFirst();
      else if (state.get().view === "alarms") segunc.alarms.focusOn();
      else return;
      event.preventDefault();
      document.activeElement.dispatchEvent(
        new KeyboardEvent("keydown", {
          key: event.key,
          shiftKey: event.shiftKey,
          bubbles: true,
          cancelable: true,
        }),
      );
      return;
    }
    const found = KEYS.find(
      ([, keys, , act, where]) => act && keys.includes(event.key) && (!where || where()),
    );
    if (!found) return;
    event.preventDefault();
    found[3]();
  }

  function start() {
    buildHelp();
    addEventListener("keydown", onKey);
    document.getElementById("help-button").addEventListener("click", toggleHelp);
  }

  segunc.keys = { start };
})(segunc);
