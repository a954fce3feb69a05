// fedbook.pictures.widgets.explore: sliders, toggles and menus over frames that were rendered beforehand.
// Everything a reader can operate is created here, so that a page without scripts shows no dead control.
(() => {
  const add = (parent, tag, properties) => parent.appendChild(Object.assign(document.createElement(tag), properties));
  for (const figure of document.querySelectorAll("figure.fc-explorer:not(.fc-ready)")) {
    const store = figure.querySelector("script[type='application/json']");
    if (!store) continue;
    const told = JSON.parse(store.textContent), {names, titles, labels, kinds, frames, play, closed, ...packed} = told;
    if (closed && !window.fcClosed) continue; // the script of another figure
    const compute = closed && fcClosed(told);
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
      const index = position.reduce((sum, p, i) => sum + p * stride[i], 0), chosen = position.map((p, i) => labels[i][p]);
      const frame = !compute ? frames[index] : index === start ? frames[0] : compute(chosen, pictures[0]);
      figure.dataset.frame = index;
      if (pictures.length) [image.src, phone.srcset] = frame.uris ?? pictures[frame.picture];
      image.alt = frame.alt;
      fill(numbers, frame.numbers);
      fill(figure.querySelector(".fc-setting"), titles.map((title, i) => [title, chosen[i]]));
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
      const last = size[play] - 1, far = compute ? Math.ceil(last / 25) : 1; // the steps of a show
      position[play] = position[play] === last ? 0 : Math.min(position[play] + far, last);
      show();
      if (!figure.isConnected || position[play] === last) stop();
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
    // The address of a page says where the controls stand.
    const address = `#${figure.dataset.figure}:`, said = new URLSearchParams(location.hash.slice(address.length));
    if (location.hash.startsWith(address)) {
      position.forEach((p, i) => (position[i] = labels[i].includes(said.get(names[i])) ? labels[i].indexOf(said.get(names[i])) : p));
      figure.scrollIntoView();
    }
    let saving;
    const save = () => {
      const at = new URLSearchParams(names.map((name, i) => [name, labels[i][position[i]]]));
      history.replaceState(null, "", address + at);
    };
    controls.onchange = controls.onclick = () => {
      clearTimeout(saving);
      if (figure.dataset.figure) saving = setTimeout(save, 300);
    };
    image.parentElement.after(controls);
    figure.classList.add("fc-ready", compute ? "fc-closed" : "fc-frames");
    stop();
    show();
    const bytes = Uint8Array.from(atob(packed.pictures.split(",")[1]), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    figure.unpacked = new Response(stream).json().then((all) => { pictures = all; show(); });
  }
})();
