// fedbook.pictures.widgets.explore: sliders, toggles and menus over frames that were rendered beforehand.
// Everything a reader can operate is created here, so that a page without scripts shows no dead control.
(() => {
  const add = (parent, tag, properties) => parent.appendChild(Object.assign(document.createElement(tag), properties));
  for (const figure of document.querySelectorAll("figure.fc-explorer:not(.fc-ready)")) {
    const store = figure.querySelector("script[type='application/json']");
    if (!store) continue;
    const {names, titles, labels, kinds, frames, play, ...packed} = JSON.parse(store.textContent);
    const image = figure.querySelector("img"), phone = figure.querySelector("source"), numbers = figure.querySelector(".fc-numbers");
    const start = +figure.dataset.frame;
    let pictures = [];
    const size = labels.map((values) => values.length);
    const stride = size.map((_, i) => size.slice(i + 1).reduce((a, b) => a * b, 1));
    const position = size.map((n, i) => Math.floor(start / stride[i]) % n);
    const controls = document.createElement("div"), follow = [];
    controls.className = "fc-controls";
    // Else JupyterLab takes the arrow keys of what has the focus.
    controls.addEventListener("focusin", (event) => (event.target.dataset.lmSuppressShortcuts = true));

    const fill = (row, pairs) => row.replaceChildren(...pairs.map(([name, value]) => {
      const span = document.createElement("span");
      add(span, "span", {textContent: name});
      span.append(" ");
      add(span, "b", {textContent: value});
      return span;
    }));
    const show = () => {
      const index = position.reduce((sum, p, i) => sum + p * stride[i], 0), frame = frames[index];
      figure.dataset.frame = index;
      if (pictures.length) [image.src, phone.srcset] = pictures[frame.picture];
      image.alt = frame.alt;
      fill(numbers, frame.numbers);
      fill(figure.querySelector(".fc-setting"), titles.map((title, i) => [title, labels[i][position[i]]]));
      position.forEach((p, i) => follow[i](p));
    };

    // Readers who ask for less motion get a button that moves one step.
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    let timer = 0, button;
    const stop = () => {
      timer = clearInterval(timer) || 0;
      numbers.ariaLive = "polite";
      if (button) button.textContent = still ? "Step" : "Play";
    };
    const step = () => {
      position[play] = (position[play] + 1) % size[play];
      show();
      if (!figure.isConnected || position[play] === size[play] - 1) stop();
    };
    const toggle = () => {
      if (timer) return stop();
      if (still) return step();
      numbers.ariaLive = "off";
      button.textContent = "Pause";
      timer = setInterval(step, 700);
      step();
    };

    // A control for parameter i in its row.  Returns what shows a position.
    const made = {
      slider: (row, i, move) => {
        const slider = add(row, "input", {type: "range", min: 0, max: size[i] - 1, step: 1, autocomplete: "off"});
        const output = add(row, "output", {ariaLive: "off"});
        output.style.minWidth = `${Math.max(...labels[i].map((text) => text.length))}ch`;
        slider.oninput = () => move(+slider.value);
        return [slider, (p) => {
          slider.value = p;
          slider.setAttribute("aria-valuetext", labels[i][p]);
          output.textContent = labels[i][p];
        }];
      },
      toggle: (row, i, move) => {
        const pair = add(row, "span", {className: "fc-toggle", role: "group", ariaLabel: titles[i]});
        const both = labels[i].map((text, p) => add(pair, "button", {type: "button", textContent: text, onclick: () => move(p)}));
        return [pair, (p) => both.forEach((b, k) => (b.ariaPressed = k === p))];
      },
      menu: (row, i, move) => {
        const menu = add(row, "select", {autocomplete: "off"});
        labels[i].forEach((text, value) => add(menu, "option", {value, textContent: text}));
        menu.onchange = () => move(+menu.value);
        return [menu, (p) => (menu.value = p)];
      },
      text: (row, i) => [null, (p) => (row.lastChild.textContent = labels[i][p])], // a single value: nothing to choose
    };
    titles.forEach((title, i) => {
      const row = add(controls, kinds[i] === "toggle" ? "div" : "label", {className: "fc-control"});
      add(row, "span", {textContent: title});
      if (kinds[i] === "text") add(row, "output");
      const [control, shows] = made[kinds[i]](row, i, (p) => { stop(); position[i] = p; show(); });
      // Not the attribute "name": a theme's search fills every input whose name is "q".
      if (control) control.dataset.name = names[i];
      follow[i] = shows;
      if (i === play) button = add(controls, "button", {type: "button", className: "fc-play", onclick: toggle});
    });
    image.parentElement.after(controls);
    figure.classList.add("fc-ready");
    stop();
    show();
    const bytes = Uint8Array.from(atob(packed.pictures.split(",")[1]), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    figure.unpacked = new Response(stream).json().then((all) => { pictures = all; show(); });
  }
})();
