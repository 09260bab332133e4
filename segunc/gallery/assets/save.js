"use strict";
/* The view of the stage as a picture with its caption: photograph, layer, outlines and boxes at the
   size of the frame, and the legend. */
(function (segunc) {
  const { table, state, layers, stage, thresholdText, announce } = segunc;
  const { page } = segunc.data;
  const LARGEST = 1600; // pixels of its width, at most

  const joined = (words) => words.filter(Boolean).join(" · ");

  /* What the picture shows, in lines. */
  function caption(index) {
    const now = state.get();
    const { layer, score } = now;
    const time = table.time(index);
    const threshold = now.flags ? table.thresholdOf(now) : null;
    const words = [`frame ${table.name(index)}`, time === null ? "" : segunc.seconds(time)];
    words.push(
      layer === "overlay" ? `image, tinted by ${layers.name(score)}` : layers.title(layer),
    );
    if (threshold !== null) {
      words.push(`flagged: ${layers.name(score)} ≥ ${thresholdText(threshold)}`);
    }
    const written = `${page.written}, ${new Date().toISOString().slice(0, 10)}`;
    const lines = [joined(words), joined([page.title, page.line, written])];
    return [...lines, unflaggedLine(), othersLine()].filter(Boolean);
  }

  const NAMED = 8; // boxes whose numbers the caption holds, of one threshold or reviewer

  /* The numbers of regions by words on each; those without words are left out. */
  function numbersBy(wordsOf) {
    const numbers = new Map(); // words -> numbers of boxes
    segunc.regions.shown().forEach((item, position) => {
      const words = wordsOf(item);
      if (words) numbers.set(words, [...(numbers.get(words) ?? []), position + 1]);
    });
    return [...numbers];
  }

  /* Boxes with their numbers and the words on them. */
  function boxWords([words, boxes]) {
    const named = boxes.slice(0, NAMED).join(", ");
    const rest = boxes.length > NAMED ? ` and ${boxes.length - NAMED} more` : "";
    return `dashed box${boxes.length > 1 ? "es" : ""} ${named}${rest}: ${words}`;
  }

  /* Which boxes were judged at another threshold, and are not flagged as regions at this one; empty
     where none is. */
  function unflaggedLine() {
    const { unflaggedWords } = segunc.regions;
    const numbers = numbersBy(({ region, unflagged }) => (unflagged ? unflaggedWords(region) : ""));
    return joined(numbers.map(boxWords));
  }

  /* Which boxes other reviewers drew; empty where none is. */
  function othersLine() {
    return joined(numbersBy(drawnWords).map(boxWords));
  }

  /* What others said of a box that they drew, with their names; empty for any other region. */
  function drawnWords(item) {
    const said = segunc.regions.drawnByOthers(item);
    if (!said) return "";
    return `${segunc.verdicts.regionWords(item.region, said.verdict)} (${said.names})`;
  }

  const DRAWN_STYLES = [
    "fill",
    "stroke",
    "stroke-width",
    "stroke-dasharray",
    "paint-order",
    "font",
    "transform",
  ];

  /* The drawings of the stage as a picture of their own, in the styles that the page gives them. */
  async function drawing(svg, width, height) {
    const copy = svg.cloneNode(true);
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    const originals = svg.querySelectorAll("*");
    copy.querySelectorAll("*").forEach((element, i) => {
      const style = getComputedStyle(originals[i]);
      element.removeAttribute("class");
      for (const name of DRAWN_STYLES) {
        element.style.setProperty(name, style.getPropertyValue(name));
      }
    });
    const picture = new Image();
    const text = encodeURIComponent(new XMLSerializer().serializeToString(copy));
    picture.src = `data:image/svg+xml;charset=utf-8,${text}`;
    await picture.decode();
    return picture;
  }

  /* What was said of regions, in words -> {verdict, dashed}, in the order of the verdicts; boxes
     that others drew are the last. Boxes that were drawn are dashed. */
  function saidOf(regions) {
    const { REGION_WORDS, regionWords } = segunc.verdicts;
    const said = new Map();
    for (const verdict of Object.keys(REGION_WORDS)) {
      for (const { region, entry } of regions) {
        if (entry?.verdict !== verdict) continue;
        const words = regionWords(region, verdict);
        const isDrawn = region.score === null;
        said.set(words, { verdict, dashed: isDrawn && (said.get(words)?.dashed ?? true) });
      }
    }
    for (const item of regions) {
      const words = drawnWords(item);
      if (!words) continue;
      said.set(words, { verdict: segunc.regions.drawnByOthers(item).verdict, dashed: true });
    }
    return said;
  }

  /* Whether the tinted image is grey somewhere, where the label is ignored. */
  function hasGrey(index) {
    const label = segunc.maps.peek(table.place(index), "label/anomaly");
    const isTinted = state.get().layer === "overlay" && stage.outlined(index);
    return isTinted && label !== null && layers.ignores(label);
  }

  /* What the outlines in the picture mean, each with the lines that it is drawn with, the lowest
     first: colour, and width in parts of a letter; where `dashed`, the uppermost in dashes. */
  function outlinesOf(index) {
    const [flagged, labelled, boxes] = stage.drawings();
    const outlines = [];
    if (state.get().flags && flagged.childElementCount) {
      const lines = [
        ["#000", 0.35],
        ["#00e0e0", 0.15],
      ];
      outlines.push({ words: "flagged", lines });
      if (flagged.querySelector(".hole")) {
        outlines.push({ words: "dashed: a hole, not flagged", lines, dashed: true });
      }
    }
    if (stage.outlined(index) && labelled.childElementCount) {
      const lines = [
        ["#000", 0.6],
        ["#fff", 0.45],
        ["#000", 0.15],
      ];
      outlines.push({ words: "labelled anomaly", lines });
    }
    if (hasGrey(index)) {
      outlines.push({ words: "ignored by the label", lines: [[layers.css(layers.IGNORED), 0.7]] });
    }
    const regions = segunc.regions.shown();
    if (regions.length) outlines.push({ words: "numbered boxes: regions", lines: [] });
    for (const [words, { verdict, dashed }] of saidOf(regions)) {
      const box = boxes.querySelector(`.${verdict} rect:last-of-type`);
      const lines = [
        ["#000", 0.35],
        [getComputedStyle(box).stroke, 0.15],
      ];
      outlines.push({ words: `${dashed ? "dashed box" : "box"}: ${words}`, lines, dashed });
    }
    return outlines;
  }

  /* Write what outlines mean in a line of letters of a size; what does not fit is narrowed. */
  function outlineLegend(draw, outlines, size, top, width) {
    const sample = 2 * size; // the length of a line
    const lengths = outlines.map(({ words, lines }) => {
      return draw.measureText(words).width + (lines.length ? 2 * sample : 0.75 * sample);
    });
    const whole = lengths.reduce((sum, length) => sum + length, 0);
    draw.save();
    draw.translate(size, Math.round(top)); // sharp lines
    draw.scale(Math.min(1, width / whole), 1);
    let left = 0;
    outlines.forEach(({ words, lines, dashed }, i) => {
      for (const [colour, part] of lines) {
        draw.fillStyle = colour;
        const thick = Math.max(1, Math.round(part * size));
        const isDashed = dashed && colour !== "#000";
        const piece = isDashed ? sample / 5 : sample;
        for (let at = 0; at < sample; at += 2 * piece) {
          draw.fillRect(left + at, Math.round(-0.35 * size - thick / 2), piece, thick);
        }
      }
      draw.fillStyle = "#ececf0";
      draw.fillText(words, left + (lines.length ? 1.25 * sample : 0), 0);
      left += lengths[i];
    });
    draw.restore();
  }

  /* Write lines of letters of a size below each other; what does not fit is narrowed. */
  function writeLines(draw, lines, size, top, width) {
    lines.forEach((line, i) => draw.fillText(line, size, top + size * (1.5 + 1.5 * i), width));
  }

  async function save() {
    const index = stage.shown();
    if (index === null) return;
    await segunc.frame.ready();
    const [rows, columns] = stage.size();
    const scale = Math.min(LARGEST / columns, Math.max(1, 640 / columns));
    const width = Math.round(columns * scale);
    const height = Math.round(rows * scale);
    const size = Math.max(14, Math.round(width / 60)); // of the letters
    const canvas = document.createElement("canvas");
    const draw = canvas.getContext("2d");
    const { layer, opacity, flags } = state.get();
    const score = layers.scoreOf(layer);
    const outlines = outlinesOf(index);
    const legendLine = outlines.length ? 1.6 : 0; // of what the outlines mean
    const lines = caption(index);
    const captionLines = 1.5 * lines.length; // in letters, as all heights here
    const strip = Math.round(size * ((score ? 3.6 : 0.6) + captionLines + legendLine));
    Object.assign(canvas, { width, height: height + strip });
    draw.fillStyle = "#16161a";
    draw.fillRect(0, 0, width, height + strip);
    const photo = await stage.photoOf(index);
    draw.imageSmoothingEnabled = scale < 2;
    if (!photo.hidden) {
      draw.filter = layers.onImage(layer) ? "none" : "grayscale(1) brightness(0.8)";
      draw.drawImage(photo, 0, 0, width, height);
      draw.filter = "none";
    }
    if (!stage.canvas().hidden) {
      draw.globalAlpha = opacity;
      draw.drawImage(stage.canvas(), 0, 0, width, height);
      draw.globalAlpha = 1;
    }
    const [flagged, labelled, boxes] = stage.drawings();
    for (const [svg, shown] of [
      [flagged, flags],
      [labelled, stage.outlined(index)],
      [boxes, true],
    ]) {
      if (!shown || !svg.childElementCount) continue;
      draw.drawImage(await drawing(svg, width, height), 0, 0, width, height);
    }
    draw.font = `${size}px system-ui, sans-serif`;
    draw.fillStyle = "#ececf0";
    writeLines(draw, lines, size, height, width - 2 * size);
    const below = height + size * captionLines;
    outlineLegend(draw, outlines, size, below + size * 1.6, width - 2 * size);
    if (score) {
      legend(draw, score, size, below + size * (0.7 + legendLine), width - 2 * size, size);
    }
    canvas.toBlob((blob) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      const name = [page.title, table.name(index), layer].join("-");
      link.download = `${name.replace(/[^\p{L}\p{N}._-]+/gu, "_")}.png`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
      announce(`saved ${link.download}`, true);
    });
  }

  function legend(draw, score, left, top, width, size) {
    const { ticks, measured_to: measured } = page.scores[score];
    const { ramp, css } = layers;
    for (let x = 0; x < width; x++) {
      draw.fillStyle = css(ramp[Math.round((255 * x) / width)]);
      draw.fillRect(left + x, top, 1, size);
    }
    draw.strokeStyle = "#16161a";
    for (let x = width / 2; measured !== null && x < width - size; x += size) {
      draw.beginPath();
      draw.moveTo(left + x, top + size);
      draw.lineTo(left + x + size, top);
      draw.stroke();
    }
    draw.fillStyle = "#a8a8b2";
    const middle = measured === null ? ticks[1] : `${ticks[1]}, measured up to here`;
    [
      ["left", 0, ticks[0]],
      ["center", width / 2, middle],
      ["right", width, ticks[2]],
    ].forEach(([align, x, words]) => {
      draw.textAlign = align;
      draw.fillText(words, left + x, top + 2.3 * size);
    });
    draw.textAlign = "left";
  }

  segunc.save = save;
})(segunc);
