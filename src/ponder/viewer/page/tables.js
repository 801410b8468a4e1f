// Tables that sort, that the keyboard moves through, and that draw only the rows in sight.
"use strict";

(() => {
  const { h, isNumber } = viewer;
  const MAX_DRAWN_ROWS = 150; // longer tables draw what is in sight
  const MARGIN_ROWS = 20; // above and below what is in sight

  // viewer.table({columns, rows, label, ...}) -> {element, update(rows), focus(), sort}
  //
  // columns: [{key, title, text(row) -> string | Node, value(row) -> what is sorted by, numeric, sortable, minor,
  //            tip}]; `minor` columns are left out on narrow screens.
  // open(row): Enter or a click on a row. href(row): what a row links to, where `open` is not given.
  // id(row): its name, for `chosen`; nameOf(row): the name that people know. chosen: a Set of ids, with a box before each row; onChoose(chosen) after changes.
  // sort: "key" or "-key"; onSort(sort) after a change. `serverSort`: the caller sorts.
  // total, need(from, to): rows that are not there yet; the caller then calls update with a sparse array.
  // rowHeight: pixels of a row; tall: the height of the box as a CSS length.
  function table(settings) {
    const { columns, label, rowHeight = 33 } = settings;
    const state = { rows: settings.rows || [], sort: settings.sort || "", order: [], active: 0, first: 0, last: 0 };
    const chosen = settings.chosen;
    const head = h("thead");
    const body = h("tbody");
    const element = h(
      "div",
      { class: "table-box", tabindex: "0", role: "group", "aria-label": `${label}: arrows move, Enter opens`, style: settings.tall ? { "max-height": settings.tall } : null, on: { scroll: () => draw(false), keydown: onKey } },
      h("table", { "aria-label": label, style: { "--row-height": `${rowHeight}px` } }, head, body),
    );

    function valueOf(column, row) {
      const value = column.value ? column.value(row) : row[column.key];
      return value === undefined ? null : value;
    }

    function sortRows() {
      state.order = Array.from(state.rows.keys());
      if (settings.serverSort || !state.sort) return;
      const falling = state.sort.startsWith("-");
      const column = columns.find((one) => one.key === state.sort.replace(/^-/, ""));
      if (!column) return;
      const values = state.rows.map((row) => valueOf(column, row));
      const compare = (a, b) => (isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
      state.order.sort((i, j) => {
        const [a, b] = [values[i], values[j]];
        if (a === null || b === null) return (a === null) - (b === null) || i - j; // what is missing comes last
        return (falling ? compare(b, a) : compare(a, b)) || i - j;
      });
    }

    function setSort(key) {
      state.sort = state.sort === key ? `-${key}` : state.sort === `-${key}` ? key : columns.find((c) => c.key === key).numeric ? `-${key}` : key;
      if (settings.onSort) settings.onSort(state.sort);
      drawHead();
      sortRows();
      element.scrollTop = 0;
      draw(true);
    }

    function drawHead() {
      const cells = columns.map((column) => {
        const sorted = state.sort.replace(/^-/, "") === column.key;
        const falling = state.sort.startsWith("-");
        const words = { scope: "col", class: cellClass(column), title: column.tip, "aria-sort": sorted ? (falling ? "descending" : "ascending") : null };
        if (column.sortable === false) return h("th", words, column.title);
        const arrow = sorted ? (falling ? " ↓" : " ↑") : "";
        return h("th", words, h("button", { type: "button", class: "sort", on: { click: () => setSort(column.key) } }, column.title, h("span", { "aria-hidden": "true" }, arrow)));
      });
      if (chosen) cells.unshift(h("th", { scope: "col", class: "choose" }, h("span", { class: "hidden-label" }, "Chosen")));
      head.replaceChildren(h("tr", null, cells));
    }

    const cellClass = (column) => [column.numeric ? "numeric" : "", column.minor ? "minor" : "", column.class || ""].filter(Boolean).join(" ") || null;

    function drawRow(place) {
      const row = state.rows[state.order[place]];
      const attributes = { class: place === state.active ? "active" : null, "aria-rowindex": place + 2, data: { place } };
      if (row === undefined) return h("tr", attributes, h("td", { colspan: columns.length + (chosen ? 1 : 0), class: "waiting" }, "…"));
      const cells = columns.map((column, i) => {
        let content = column.text ? column.text(row) : row[column.key];
        if (i === 0 && settings.href) content = h("a", { href: settings.href(row), tabindex: "-1" }, content);
        return h("td", { class: cellClass(column) }, content === null || content === undefined ? "–" : content);
      });
      if (chosen) {
        const box = h("input", { type: "checkbox", tabindex: "-1", checked: chosen.has(settings.id(row)), "aria-label": `Choose ${settings.nameOf ? settings.nameOf(row) : settings.id(row)}`, on: { change: () => choose(row) } });
        cells.unshift(h("td", { class: "choose" }, box));
      }
      return h("tr", attributes, cells);
    }

    function draw(anew) {
      const count = state.rows.length;
      let [first, last] = [0, count];
      if (count > MAX_DRAWN_ROWS) {
        const height = element.clientHeight || 600;
        first = Math.max(0, Math.floor(element.scrollTop / rowHeight) - MARGIN_ROWS);
        last = Math.min(count, Math.ceil((element.scrollTop + height) / rowHeight) + MARGIN_ROWS);
      }
      if (!anew && first === state.first && last === state.last) return;
      [state.first, state.last] = [first, last];
      const rows = [];
      const gap = (rowsAway) => h("tr", { class: "gap", "aria-hidden": "true", style: { height: `${rowsAway * rowHeight}px` } });
      if (first > 0) rows.push(gap(first));
      for (let place = first; place < last; place++) rows.push(drawRow(place));
      if (last < count) rows.push(gap(count - last));
      if (!count) rows.push(h("tr", null, h("td", { class: "empty", colspan: columns.length + (chosen ? 1 : 0) }, settings.empty || "Nothing here.")));
      body.replaceChildren(...rows);
      element.firstChild.setAttribute("aria-rowcount", String(count + 1));
      if (settings.need && state.order.slice(first, last).some((i) => state.rows[i] === undefined)) settings.need(first, last);
    }

    function choose(row) {
      const id = settings.id(row);
      if (!chosen.delete(id)) chosen.add(id);
      if (settings.onChoose) settings.onChoose(chosen);
      draw(true);
    }

    function openRow(row, event) {
      if (row === undefined) return;
      if (settings.open) settings.open(row, event);
      else if (settings.href) location.hash = settings.href(row);
    }

    function moveTo(place) {
      state.active = Math.max(0, Math.min(state.rows.length - 1, place));
      const top = state.active * rowHeight;
      const visible = element.clientHeight - 2 * rowHeight;
      if (top < element.scrollTop) element.scrollTop = top;
      else if (top > element.scrollTop + visible) element.scrollTop = top - visible;
      draw(true);
      body.querySelector("tr.active")?.scrollIntoView({ block: "nearest" });
    }

    function onKey(event) {
      if (event.target !== element || event.ctrlKey || event.metaKey || event.altKey) return;
      const page = Math.max(1, Math.floor(element.clientHeight / rowHeight) - 2);
      const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
      const row = state.rows[state.order[state.active]];
      if (event.key in moves) moveTo(state.active + moves[event.key]);
      else if (event.key === "Enter") openRow(row, event);
      else if ((event.key === "x" || event.key === " ") && chosen && row !== undefined) choose(row);
      else return;
      event.preventDefault();
      event.stopPropagation();
    }

    body.addEventListener("click", (event) => {
      const line = event.target.closest("tr[data-place]");
      if (!line || event.target.closest("input, button, a")) return;
      state.active = Number(line.dataset.place);
      if (String(getSelection())) return; // the reader marks text
      const row = state.rows[state.order[state.active]];
      if (settings.open || settings.href) openRow(row, event);
      else draw(true);
    });

    const handle = {
      element,
      // Draws other rows; where the reader is stays.
      update(rows) {
        state.rows = rows;
        state.active = Math.max(0, Math.min(state.active, rows.length - 1));
        sortRows();
        draw(true);
      },
      redraw: () => draw(true),
      focus: () => element.focus(),
      get sort() {
        return state.sort;
      },
      // The rows as they are sorted.
      get sorted() {
        return state.order.map((i) => state.rows[i]);
      },
    };
    drawHead();
    sortRows();
    draw(true);
    if (state.rows.length > MAX_DRAWN_ROWS) setTimeout(() => draw(true)); // its height is known only then
    return handle;
  }

  viewer.table = table;
})();
