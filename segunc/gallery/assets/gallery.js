"use strict";
/* The gallery: only the cards in sight exist, so ten thousand frames scroll as ten do. */
(function (segunc) {
  const { element, table, state, verdicts, format, seconds } = segunc;
  const { page } = segunc.data;
  const WIDTH = 400, GAP = 14, TEXT = 74; // smallest card, space between cards, height of the text below pictures
  const MARGIN = 2; // rows kept above and below what is in sight
  const scroller = document.getElementById("scroller"), list = document.getElementById("cards");
  const cards = new Map(); // position -> element
  let order = [], rest = [], members = new Map(); // as shown; with what its moments hide; first frame of a moment -> its others
  let focused = 0, columns = 1, rowHeight = 1, cardWidth = WIDTH, measured = 0, stamp = "";
  let drawnAt = 0, settled = null; // where the list was drawn last, and the timer that ends a leap
  let stale = false; // verdicts have changed since the cards were made

  function measure() {
    const width = measured = list.clientWidth;
    columns = Math.max(1, Math.floor((width + GAP) / (WIDTH + GAP)));
    cardWidth = Math.floor((width + GAP) / columns) - GAP;
    const [height, across] = table.size(0) ?? [1, 2];
    const pictures = table.everHas("image") && table.scores.length ? 2 : 1;
    const picture = Math.round(Math.min(Math.max(cardWidth / pictures * (height / across), 60), 260));
    rowHeight = picture + TEXT + GAP;
    list.style.setProperty("--picture", `${picture}px`);
  }

  function refresh(keepScroll) {
    const current = state.get();
    const all = table.select(current, verdicts), grouped = current.moments === "one" && current.order !== "source";
    [order, members] = grouped ? table.moments(all, table.index(current.opened)) : [all, new Map()];
    rest = all;
    segunc.filters.showCount(all.length, current, grouped ? members.size : all.length);
    if (!keepScroll) {
      scroller.scrollTop = 0;
      focused = 0;
    }
    redraw();
  }

  function redraw() {
    const hadFocus = list.contains(document.activeElement);
    for (const card of cards.values()) card.remove();
    cards.clear();
    stale = false;
    measure();
    list.style.height = `${Math.ceil(order.length / columns) * rowHeight}px`;
    render();
    if (hadFocus) focusOn(focused);
  }

  function render() {
    if (document.getElementById("gallery-view").hidden) return;
    const first = Math.max(0, Math.floor(scroller.scrollTop / rowHeight) - MARGIN) * columns;
    const rows = Math.ceil(scroller.clientHeight / rowHeight) + 2 * MARGIN + 1;
    const last = Math.min(order.length, first + rows * columns);
    for (const [position, card] of cards) {
      // The card that has the focus stays, or the focus would be lost.
      if ((position < first || position >= last) && position !== focused) {
        card.remove();
        cards.delete(position);
      }
    }
    for (let position = first; position < last; position++) insert(position);
    insert(focused);
    // While the bar is dragged through thousands of frames, pictures that nobody sees are not loaded.
    const leap = Math.abs(scroller.scrollTop - drawnAt) > scroller.clientHeight;
    drawnAt = scroller.scrollTop;
    clearTimeout(settled);
    if (leap) settled = setTimeout(loadPictures, 80);
    else loadPictures();
  }

  function loadPictures() {
    for (const picture of list.querySelectorAll("img[data-src]")) {
      picture.src = picture.dataset.src;
      delete picture.dataset.src;
    }
  }

  /* In the order of the frames, in which a screen reader meets them. */
  function insert(position) {
    if (position >= order.length || cards.has(position)) return;
    const next = [...list.children].find((card) => Number(card.dataset.position) > position);
    list.insertBefore(make(position), next ?? null);
  }

  function make(position) {
    const index = order[position], current = state.get(), name = table.name(index);
    const card = element("li", { "aria-posinset": position + 1, "aria-setsize": order.length });
    card.style.transform = `translate(${(position % columns) * (cardWidth + GAP)}px, ${Math.floor(position / columns) * rowHeight}px)`;
    card.style.width = `${cardWidth}px`;
    const link = element("a", { href: `#view=frame&frame=${encodeURIComponent(name)}`, tabindex: position === focused ? 0 : -1 });
    const pictures = element("span", { class: "pictures" });
    if (table.has(index, "image")) pictures.append(thumbnail(index, "image", "image"));
    if (current.score && table.has(index, current.score)) {
      pictures.append(thumbnail(index, current.score, `${current.score} map`));
    }
    if (!pictures.children.length) pictures.append(element("span", { class: "nothing" }, "no picture"));
    link.append(pictures, element("span", { class: "name" }, name), facts(index, current));
    card.append(link);
    const more = members.get(index)?.length;
    if (more) {
      const open = current.opened === name;
      card.append(element("button", { type: "button", class: "moment", "aria-expanded": String(open), tabindex: "-1", title: "Show or hide the other frames of this moment (x)",
        onclick: (event) => { event.stopPropagation(); toggleMoment(name); } }, open ? `− ${more}` : `+ ${more} of this moment`));
    } else if (current.opened !== null && members.get(table.index(current.opened))?.includes(index)) card.classList.add("member");
    cards.set(position, card);
    card.dataset.position = position;
    return card;
  }

  function thumbnail(index, content, words) {
    return element("img", { "data-src": `thumbnails/${table.folder(index)}/${encodeURIComponent(content)}.jpg`, alt: words, decoding: "async", draggable: "false" });
  }

  /* Where a value lies in the fixed range of its score. */
  function meter(value, score) {
    const { low, high } = page.scores[score], bar = element("b");
    bar.style.width = `${100 * Math.min(1, Math.max(0, (value - low) / (high - low)))}%`;
    return element("i", { class: "meter", "aria-hidden": "true" }, bar);
  }

  function facts(index, current) {
    const line = element("span", { class: "facts" });
    const opinions = verdicts.opinions(table.name(index)), several = new Set(opinions.map(({ reviewer }) => reviewer)).size > 1;
    const value = current.score ? table.ranked(index, current) : null;
    if (value !== null) {
      line.append(element("span", { class: "value" }, `${segunc.filters.statisticWords(current.statistic, current.score)} ${format(Number(value.toPrecision(4)))}`));
      if (table.inUnit(current.statistic) && !several) line.append(meter(value, current.score));
    }
    const time = table.time(index);
    if (time !== null) line.append(element("span", { class: "faint" }, seconds(time)));
    const objects = table.objects(index);
    if (objects && !several) { // two verdicts take the room
      const outcome = current.score ? table.outcome(index, current.score, current.threshold) : null;
      line.append(element("span", { class: `badge ${outcome ?? ""}` }, outcome ?? (objects === 1 ? "1 labelled object" : `${objects} labelled objects`)));
    }
    for (const { reviewer, verdict, note } of opinions) {
      const who = several ? `${reviewer || "no name"}: ` : "";
      if (verdict) line.append(element("span", { class: `badge ${verdict}` }, who + verdicts.WORDS[verdict]));
      if (note) line.append(element("span", { class: "badge" }, `${who}note`));
    }
    if (table.problems(index).length) line.append(element("span", { class: "badge problem" }, "incomplete"));
    return line;
  }

  /* Move the focus to a card, which is brought into sight. */
  function focusOn(position) {
    if (!order.length) return;
    const target = Math.min(order.length - 1, Math.max(0, position));
    cards.get(focused)?.firstChild.setAttribute("tabindex", "-1");
    focused = target;
    const top = Math.floor(target / columns) * rowHeight;
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    else if (top + rowHeight > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + rowHeight - scroller.clientHeight;
    render();
    const link = cards.get(target).firstChild;
    link.setAttribute("tabindex", "0");
    link.focus({ preventScroll: true });
  }

  function onKey(event) {
    const page = Math.max(1, Math.floor(scroller.clientHeight / rowHeight)) * columns;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, PageDown: page, PageUp: -page }[event.key];
    const target = event.key === "Home" ? 0 : event.key === "End" ? order.length - 1 : step === undefined ? null : focused + step;
    if (target === null || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    focusOn(target);
  }

  function start() {
    scroller.addEventListener("scroll", render, { passive: true }); // once a frame, before it is painted
    list.addEventListener("keydown", onKey);
    list.addEventListener("focusin", (event) => {
      const card = event.target.closest("li");
      if (card) focused = Number(card.dataset.position);
    });
    list.addEventListener("click", (event) => {
      const card = event.target.closest("li");
      if (!card || event.ctrlKey || event.metaKey || event.shiftKey) return; // a new tab, by the address alone
      event.preventDefault();
      open(Number(card.dataset.position));
    });
    new ResizeObserver(() => {
      if (list.clientWidth && list.clientWidth !== measured) redraw();
      else render();
    }).observe(scroller);
    // The order stays while a frame is looked at, so that "next" keeps its meaning while verdicts are given.
    verdicts.onChange(() => {
      stale = true;
      if (state.get().view === "gallery") refresh(true);
    });
  }

  function toggleMoment(name) {
    state.set({ opened: state.get().opened === name ? null : name });
  }

  function open(position) {
    focused = position;
    state.set({ view: "frame", frame: table.name(order[position]), zoom: 1, x: 0.5, y: 0.5, probe: null });
  }

  const FIELDS = ["score", "statistic", "model", "order", "moments", "opened", "run", "search", "show", "verdict", "threshold"];
  function update(current, changed) {
    const key = JSON.stringify(FIELDS.map((field) => current[field]));
    if (key !== stamp) {
      stamp = key;
      refresh(changed.size === 1 && changed.has("opened"));
    } else if (changed.has("view") && current.view === "gallery") {
      if (stale) refresh(true);
      else redraw();
      if (changed.has("frame") || current.frame) focusOn(Math.max(0, order.indexOf(table.index(current.frame))));
    }
  }

  segunc.gallery = {
    start, update,
    /* The frame of the card that has the focus, or null. */
    focusedFrame: () => (list.contains(document.activeElement) && focused < order.length ? table.name(order[focused]) : null),
    toggleMoment: () => {
      const index = order[focused];
      if (members.get(index)?.length) toggleMoment(table.name(index));
    },
    /* As shown, with what its moments hide behind their first. */
    rest: () => rest,
    focusFirst: () => focusOn(focused),
    order: () => order,
  };
})(segunc);
