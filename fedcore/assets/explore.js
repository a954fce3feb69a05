// The static face of fedcore.widgets.explore: sliders over frames that were rendered beforehand.
// Everything a reader can operate is created here, so that a page without scripts shows no dead control.
(() => {
  const add = (parent, tag, properties) => parent.appendChild(Object.assign(document.createElement(tag), properties));
  for (const figure of document.querySelectorAll("figure.fc-explorer:not(.fc-ready)")) {
    const store = figure.querySelector("script[type='application/json']");
    if (!store) continue;
    const {names, titles, labels, pictures, frames, play} = JSON.parse(store.textContent);
    const image = figure.querySelector("img"), numbers = figure.querySelector(".fc-numbers");
    // The start picture stands in the page already and is not stored twice.
    const start = +figure.dataset.frame;
    pictures[frames[start].picture] = image.src;
    const size = labels.map((values) => values.length);
    const stride = size.map((_, i) => size.slice(i + 1).reduce((a, b) => a * b, 1));
    const position = size.map((n, i) => Math.floor(start / stride[i]) % n);
    const controls = document.createElement("div"), sliders = [], outputs = [];
    controls.className = "fc-controls";

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
      image.src = pictures[frame.picture];
      image.alt = frame.alt;
      fill(numbers, frame.numbers);
      fill(figure.querySelector(".fc-setting"), titles.map((title, i) => [title, labels[i][position[i]]]));
      position.forEach((p, i) => {
        outputs[i].textContent = labels[i][p];
        if (!sliders[i]) return;
        sliders[i].value = p;
        sliders[i].setAttribute("aria-valuetext", labels[i][p]);
      });
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

    titles.forEach((title, i) => {
      const label = add(controls, "label");
      add(label, "span", {textContent: title});
      // A single value is printed without a slider: there is nothing to move.
      if (size[i] > 1) {
        const range = {type: "range", min: 0, max: size[i] - 1, step: 1, autocomplete: "off"};
        sliders[i] = add(label, "input", range);
        // Not the attribute "name": a theme's search fills every input whose name is "q".
        sliders[i].dataset.name = names[i];
        sliders[i].oninput = () => { stop(); position[i] = +sliders[i].value; show(); };
      }
      outputs[i] = add(controls, "output", {ariaLive: "off"});
      const widest = Math.max(...labels[i].map((text) => text.length));
      outputs[i].style.minWidth = `${widest}ch`;
      if (i === play) button = add(controls, "button", {type: "button", onclick: toggle});
    });
    image.after(controls);
    figure.classList.add("fc-ready");
    stop();
    show();
  }
})();
