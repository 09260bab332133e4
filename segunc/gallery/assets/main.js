"use strict";
/* Puts the page together and tells every part of each change of state. */
(function (segunc) {
  const { state, table, verdicts, run } = segunc;
  const views = ["gallery", "frame", "run"];

  /* What is not the picture folds away: by a key, and by itself where the window is low, until the reader says otherwise. */
  const LOW = matchMedia("(max-height: 700px)");
  segunc.compact = {
    chosen: null,
    show() { document.documentElement.dataset.compact = this.chosen ?? LOW.matches ? "yes" : "no"; },
    toggle() {
      this.chosen = document.documentElement.dataset.compact !== "yes";
      this.show();
      segunc.announce(this.chosen ? "model line, values and timeline are folded away" : "everything is shown", true);
    },
    start() {
      LOW.addEventListener("change", () => this.show());
      this.show();
    },
  };

  function showView(current) {
    for (const view of views) document.getElementById(`${view}-view`).hidden = view !== current.view;
    for (const button of document.querySelectorAll("nav button")) {
      if (button.dataset.view === current.view) button.setAttribute("aria-current", "page");
      else button.removeAttribute("aria-current");
    }
    document.title = `${current.view === "frame" && current.frame ? `${current.frame} · ` : ""}${segunc.data.page.title}: uncertainty review`;
  }

  function showProgress() {
    let judged = 0;
    for (let index = 0; index < table.count; index++) judged += verdicts.get(table.name(index))?.verdict ? 1 : 0;
    document.getElementById("progress").textContent = `${judged} of ${table.count} judged${verdicts.kept() ? "" : ", not kept by this browser: export before you close"}`;
  }

  run.header();
  run.notices();
  run.build();
  segunc.filters.build();
  segunc.gallery.start();
  segunc.frame.start();
  segunc.timeline.start();
  segunc.reviewer.start();
  segunc.verdictFiles.start(run.say);
  segunc.compact.start();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => segunc.timeline.draw());
  segunc.keys.start();
  verdicts.onChange(showProgress);
  showProgress();
  for (const button of document.querySelectorAll("nav button")) {
    button.addEventListener("click", () => state.set({ view: button.dataset.view }));
  }
  document.getElementById("skip").addEventListener("click", () => {
    if (state.get().view === "gallery") segunc.gallery.focusFirst();
    else document.getElementById("content").focus();
  });
  state.onChange((current, changed) => {
    showView(current);
    segunc.filters.update(current, changed);
    segunc.gallery.update(current, changed);
    segunc.frame.update(current, changed);
    segunc.timeline.update(current, changed);
  });
  state.start();
  if (state.unknownFrame() !== null) run.say(`The link leads to the frame ${state.unknownFrame()}, which this page does not hold.`);
  document.documentElement.dataset.ready = "yes";
})(segunc);
