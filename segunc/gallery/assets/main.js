"use strict";
/* Puts the page together and tells every part of each change of state. */
(function (segunc) {
  const { state, table, verdicts, run } = segunc;
  const views = ["gallery", "frame", "video", "run"];

  /* Dark, light or as the system has it; remembered where the browser keeps things. */
  const THEMES = ["system", "dark", "light"];
  const THEME_KEY = "segunc-review-theme";
  segunc.theme = {
    next() {
      const now = document.documentElement.dataset.theme ?? "system";
      this.set(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
    },
    set(theme) {
      if (theme === "system") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = theme;
      const button = document.getElementById("theme");
      button.textContent = `Theme: ${theme}`;
      try {
        localStorage.setItem(THEME_KEY, theme);
      } catch { /* the theme lasts as long as the page */ }
      segunc.timeline.draw();
    },
    start() {
      let kept = null;
      try {
        kept = localStorage.getItem(THEME_KEY);
      } catch { /* the browser keeps nothing: as the system has it */ }
      this.set(THEMES.includes(kept) ? kept : "system");
      document.getElementById("theme").addEventListener("click", () => this.next());
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => segunc.timeline.draw());
    },
  };

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
    /* The picture alone, and the whole screen for it. */
    alone() {
      const root = document.documentElement, now = !("alone" in root.dataset);
      if (now) root.dataset.alone = "";
      else delete root.dataset.alone;
      if (now) root.requestFullscreen?.().catch(() => {});
      else if (document.fullscreenElement) document.exitFullscreen();
    },
    start() {
      LOW.addEventListener("change", () => this.show());
      document.addEventListener("fullscreenchange", () => { if (!document.fullscreenElement) delete document.documentElement.dataset.alone; });
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
  segunc.theme.start();
  segunc.compact.start();
  segunc.keys.start();
  verdicts.onChange(showProgress);
  showProgress();
  for (const button of document.querySelectorAll("nav button")) {
    button.hidden = button.dataset.view === "video" && !segunc.data.page.video;
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
