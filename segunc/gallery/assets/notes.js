"use strict";
/* The note on a frame where its own field is not seen: on an alarm of the list or a card of the
   gallery. The field lies in a dialog, so that no key that is typed in it judges anything. */
(function (segunc) {
  const { element, verdicts, reviewing } = segunc;
  const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("note-dialog"));
  const title = element("h2", { id: "note-title" });
  const field = element("textarea", {
    id: "note-field",
    rows: 4,
    "aria-labelledby": "note-title",
    oninput: () => verdicts.set(subject, { note: field.value }),
  });
  let subject = null; // name of the frame
  let goBack = () => {};

  /* Open the note on a frame, after the reviewer's name is known; `left` gives the focus back. */
  function open(frame, left) {
    reviewing.named(() => {
      subject = frame;
      goBack = left;
      title.textContent = `Note on frame ${frame}`;
      field.value = verdicts.get(frame)?.note ?? "";
      dialog.showModal();
      field.focus();
    }, left);
  }

  function start() {
    const done = element("button", { type: "button", onclick: () => dialog.close() }, "Done ");
    done.append(element("kbd", {}, "Escape"));
    dialog.append(title, field, element("p", { class: "row at-end" }, done));
    // What is written is kept letter by letter, so to close the dialog only leaves it.
    dialog.addEventListener("close", () => goBack());
  }

  segunc.notes = { start, open };
})(segunc);
