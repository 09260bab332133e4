"use strict";
/* Who judges: asked once, when the first verdict is given, and kept in this browser. */
(function (segunc) {
  const { element, verdicts } = segunc;
  const dialog = document.getElementById("reviewer"), button = document.getElementById("reviewer-button");
  const input = element("input", { type: "text", id: "reviewer-name", autocomplete: "name", "aria-label": "Your name", maxlength: 60 });
  let waiting = null;

  function ask(then = null) {
    waiting = then;
    input.value = verdicts.reviewer() ?? "";
    dialog.showModal();
    input.focus();
  }

  /* Do something in the reviewer's name, which is asked for first where it is not known. */
  function named(act) {
    if (verdicts.reviewer() === null) ask(act);
    else act();
  }

  function show() {
    button.textContent = verdicts.reviewer() ? `Reviewer: ${verdicts.reviewer()}` : "Reviewer";
  }

  function start() {
    const form = element("form", { method: "dialog" }, element("h2", { id: "reviewer-title" }, "Who judges?"),
      element("p", { class: "small" }, "The name stands with each of your verdicts, so that those of several reviewers can be compared. It stays in this browser and in what you export; it may be left empty."),
      element("p", { class: "row" }, input, element("button", { type: "submit" }, "Go on")));
    dialog.append(form);
    form.addEventListener("submit", () => {
      verdicts.setName(input.value);
      const act = waiting;
      waiting = null;
      dialog.addEventListener("close", () => act?.(), { once: true });
    });
    dialog.addEventListener("cancel", () => { waiting = null; });
    button.addEventListener("click", () => ask());
    verdicts.onChange(show);
    show();
  }

  segunc.reviewer = { start, named };
})(segunc);
