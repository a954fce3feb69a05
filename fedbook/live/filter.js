// The controls of fedbook.pages.filtered: a text field, menus, and headers that sort.
// Everything a reader can operate is created here, so that a page without scripts shows no dead control.
(() => {
  const add = (parent, tag, properties) => parent.appendChild(Object.assign(document.createElement(tag), properties));
  for (const box of document.querySelectorAll(".fc-filter:not(.fc-ready)")) {
    const {menus, orders} = JSON.parse(box.querySelector("script[type='application/json']").textContent);
    const table = box.querySelector("table"), body = table.tBodies[0], rows = [...body.rows];
    const heads = [...table.tHead.rows[0].cells], titles = heads.map((head) => head.textContent);
    const cell = (row, i) => row.cells[i].textContent;
    const words = new Map(rows.map((row) => [row, [...row.cells].map((c) => c.textContent).join(" ").toLowerCase()]));
    const tools = document.createElement("div");
    tools.className = "fc-tools";
    const control = (title, tag, properties) => {
      const label = add(tools, "label");
      add(label, "span", {textContent: title});
      return add(label, tag, {autocomplete: "off", ...properties});
    };

    const search = control("words", "input", {type: "search", oninput: () => show()});
    const selects = menus.map((i) => {
      const select = control(titles[i], "select", {onchange: () => show()});
      const values = rows.map((row) => cell(row, i));
      add(select, "option", {value: "", textContent: "all"});
      for (const value of orders[i] || [...new Set(values)]) {
        const count = values.filter((v) => v === value).length;
        if (count) add(select, "option", {value, textContent: `${value} (${count})`});
      }
      return [i, select];
    });
    const count = add(tools, "output", {ariaLive: "polite"});
    const show = () => {
      const asked = search.value.toLowerCase().split(/\s+/);
      for (const row of rows) {
        row.hidden = !(asked.every((word) => words.get(row).includes(word))
          && selects.every(([i, select]) => !select.value || cell(row, i) === select.value));
      }
      count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
    };

    const collator = new Intl.Collator("en", {numeric: true});
    const sort = (i) => {
      const down = heads[i].ariaSort === "ascending";
      const compare = orders[i]
        ? (a, b) => orders[i].indexOf(cell(a, i)) - orders[i].indexOf(cell(b, i))
        : (a, b) => collator.compare(cell(a, i), cell(b, i));
      heads.forEach((head) => head.removeAttribute("aria-sort"));
      heads[i].setAttribute("aria-sort", down ? "descending" : "ascending");
      // From the order of the page, so that equal rows always stand in it.
      body.append(...[...rows].sort((a, b) => (down ? -1 : 1) * compare(a, b)));
    };
    heads.forEach((head, i) => {
      head.replaceChildren();
      add(head, "button", {type: "button", textContent: titles[i], title: `sort by ${titles[i]}`, onclick: () => sort(i)});
    });
    table.parentElement.before(tools);
    box.classList.add("fc-ready");
    show();
  }
})();
