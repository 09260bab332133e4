"use strict";
/* Verdicts as files: export by download, import of an exported file. */
(function (segunc) {
  const { verdicts, table, announce } = segunc;
  const { page } = segunc.data;
  const FORMAT = "segunc-verdicts", VERSION = 1;

  function download(text, type, ending) {
    const link = segunc.element("a", {
      href: URL.createObjectURL(new Blob([text], { type })),
      download: `verdicts-${page.title.replace(/[^\w.-]+/g, "_")}.${ending}`,
    });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    announce(`${verdicts.all().length} verdicts exported`);
  }

  function asJson() {
    const head = { format: FORMAT, version: VERSION, run: page.run, title: page.title, tool: page.written };
    return `${JSON.stringify({ ...head, exported: new Date().toISOString(), verdicts: verdicts.all() }, null, 2)}\n`;
  }

  /* RFC 4180: fields with a comma, quote or line break in quotes, quotes doubled. */
  function asCsv() {
    const quote = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const rows = verdicts.all().map((v) => [page.run, v.frame, v.verdict, v.note, v.time].map(quote).join(","));
    return ["run,frame,verdict,note,time", ...rows, ""].join("\r\n");
  }

  /* One line on what was taken from the text of an exported file, or why nothing was. */
  function read(text) {
    let content;
    try {
      content = JSON.parse(text);
    } catch {
      return "The file is no JSON; export it again.";
    }
    if (content?.format !== FORMAT || content.version !== VERSION || !Array.isArray(content.verdicts)) {
      return "The file holds no verdicts of this page's form; export it again.";
    }
    if (content.run !== page.run) return `The file holds verdicts on another run (${content.run}); nothing was taken.`;
    const whole = content.verdicts.filter((v) => typeof v.note === "string" && typeof v.time === "string"
      && (v.verdict === "" || v.verdict in verdicts.WORDS));
    const known = whole.filter((v) => table.index(v.frame) !== null);
    const taken = verdicts.add(known);
    const left = content.verdicts.length - known.length;
    return `${taken} verdicts taken, ${known.length - taken} were here or newer${left ? `, ${left} are damaged or of frames that are not here` : ""}.`;
  }

  function start(say) {
    const file = document.getElementById("import-file");
    document.getElementById("export-json").addEventListener("click", () => download(asJson(), "application/json", "json"));
    document.getElementById("export-csv").addEventListener("click", () => download(asCsv(), "text/csv", "csv"));
    document.getElementById("import").addEventListener("click", () => file.click());
    file.addEventListener("change", async () => {
      if (file.files.length) say(read(await file.files[0].text()));
      file.value = "";
    });
  }

  segunc.verdictFiles = { start };
})(segunc);
