// What the live pictures share: numbers in words, drawing that touches only what has changed, controls, and the two
// places where a picture stands, pages and notebooks.

const {PI, abs, cos, hypot, max, min, sin, sqrt} = Math;
const short = (v) => {
  if (!Number.isFinite(v)) return "not finite";
  if (v !== 0 && abs(v) < 1e-3) return v.toExponential(0).replace("e-", " · 10^-").replace(/\^-(\d+)/, (_, d) => superscript(`-${d}`));
  return String(+v.toPrecision(abs(v) >= 1 ? 3 : 2)).replace("-", "−");
};
const superscript = (text) => [...String(text)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
const listed = (words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`);
const trim = (v) => String(+(+v).toPrecision(12));

// SplitMix64 chained over integers: the random numbers of the package, to the bit.
const MASK = (1n << 64n) - 1n;
function word(...parts) {
  let h = 0n;
  for (const part of parts) {
    h = ((h ^ BigInt(part)) + 0x9e3779b97f4a7c15n) & MASK;
    h = ((h ^ (h >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
    h = ((h ^ (h >> 27n)) * 0x94d049bb133111ebn) & MASK;
    h ^= h >> 31n;
  }
  return h;
}

// A number from outside, or `otherwise` and why.
const finite = (v, [low, high, kind], otherwise, name, problems) => {
  if (v === null || v === "" || !Number.isFinite(+v)) problems.push(`${name} is ${v === "" ? "empty" : v}, not a number; it stays ${otherwise}.`);
  else if (+v < low || +v > high) problems.push(`${name} = ${v} is outside ${low} to ${high}; it stays ${otherwise}.`);
  else if (kind === "above" && +v === low) problems.push(`${name} = ${v} must be greater than ${low}; it stays ${otherwise}.`);
  else if (kind === "whole" && !Number.isInteger(+v)) problems.push(`${name} = ${v} is no whole number; it stays ${otherwise}.`);
  else return +v;
  return otherwise;
};

// What the page's address says behind `#name:`, or null; a percent sign that is no code stands for itself.
const behind = (name) => {
  if (!location.hash.startsWith(name)) return null;
  const text = location.hash.slice(name.length);
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};
// Complaints as one text that leaves the picture its place.
const few = (all) => all.slice(0, 3).join(" ") + (all.length > 3 ? ` And ${all.length - 3} more.` : "");

const SVG = "http://www.w3.org/2000/svg";
const make = (tag, attributes = {}, parent = null, text = null) => {
  const e = document.createElementNS(SVG, tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== null) e.textContent = text;
  parent?.append(e);
  return e;
};
const html = (tag, properties = {}, parent = null) => {
  const e = Object.assign(document.createElement(tag), properties);
  parent?.append(e);
  return e;
};
// Draws in the next frame, once, however often it is asked to before.
const framed = (render) => {
  let asked = 0;
  const now = () => {
    asked = 0;
    render();
  };
  return () => (asked ||= requestAnimationFrame(now));
};
// Calls when nothing has asked for 60 ms.
const settled = (call) => {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(call, 60);
  };
};
const px = (v) => Math.round(10 * v) / 10;

// Wider than all that is drawn on it: where the extent of a drawing changes, or an attribute `transform`, the browser
// puts together the layers of the whole page anew, and that in each frame.
const ground = (svg, w, h) => make("rect", {x: -9 * w, y: -9 * h, width: 19 * w, height: 19 * h, fill: "transparent", "pointer-events": "none"}, svg);

// Draws into a group, again and again: put(tag, attributes, text) takes up the element of the last picture where there
// is one and touches what has changed, so that a picture follows a finger on a slow phone.
function pen(group) {
  const all = [];
  let k = 0;
  const put = (tag, attributes, text = null) => {
    let item = all[k];
    if (item?.tag !== tag) {
      const e = make(tag);
      if (item) item.e.replaceWith(e);
      else group.append(e);
      item = all[k] = {tag, e, was: {}, text: null};
    }
    k += 1;
    if (item.was !== attributes) {
      for (const name in attributes) if (item.was[name] !== attributes[name]) item.e.setAttribute(name, attributes[name]);
      for (const name in item.was) if (!(name in attributes)) item.e.removeAttribute(name);
      item.was = attributes;
    }
    if (item.text !== text) item.e.textContent = item.text = text;
  };
  put.begin = () => (k = 0);
  put.end = () => {
    while (all.length > k) all.pop().e.remove();
  };
  return put;
}

// Markers by matplotlib's letters, as elsewhere in the book, around (x, y); r is about the radius.
const FOUR = [1, 1, 1, 1], THREE = [1, 1, 1], CROSS = [1, 0.5, 1, 0.5, 1, 0.5, 1, 0.5], STAR = [1, 0.42, 1, 0.42, 1, 0.42, 1, 0.42, 1, 0.42];
const SHAPES = {s: [1.25, FOUR, -45], D: [1.3, FOUR], "^": [1.3, THREE], v: [1.3, THREE, 90], X: [1.2, CROSS, -45], "*": [1.5, STAR]};
function marker(code, r, x = 0, y = 0) {
  if (code === "P") {
    const b = 0.42 * r, c = 0.68 * r;
    return `M${px(x - b)} ${px(y - b - c)}h${2 * b}v${c}h${c}v${2 * b}h${-c}v${c}h${-2 * b}v${-c}h${-c}v${-2 * b}h${c}Z`;
  }
  if (!SHAPES[code]) return `M${px(x - r)} ${px(y)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;
  const [size, points, turn = -90] = SHAPES[code];
  return "M" + points.map((q, k) => {
    const t = ((360 * k) / points.length + turn) * (PI / 180);
    return `${px(x + r * size * q * cos(t))} ${px(y + r * size * q * sin(t))}`;
  }).join("L") + "Z";
}

// Buttons and ranges; before: called when one is used.
function controlsThat(before) {
  const button = (parent, text, title, action) => {
    const b = html("button", {type: "button", textContent: text, title}, parent);
    b.onclick = action;
    return b;
  };
  // A labelled range: native, so keys, touch and screen readers work as everywhere.
  const range = (parent, label, low, high, step, get, set, print = short, more = {}) => {
    const row = html("label", {className: "pg-range", title: more.title || ""}, parent), name = html("span", {}, row);
    const [words, index] = label.split("_");
    name.append(words);
    if (index) html("sub", {textContent: index}, name);
    if (more.method) name.className = "pg-key";
    if (more.method) name.style.setProperty("--k", `var(--${more.method})`);
    const input = html("input", {type: "range", min: low, max: high, step, autocomplete: "off"}, row), out = html("output", {ariaLive: "off"}, row);
    input.dataset.name = more.name || label;
    input.setAttribute("aria-label", more.spoken || label.replace("_", " "));
    input.oninput = () => {
      before();
      set(+input.value);
    };
    return () => {
      const v = get(), text = print(v), top = String(typeof high === "function" ? high() : high);
      if (input.max !== top) input.max = top;
      if (+input.value !== v) input.value = v;
      if (out.textContent === text) return;
      out.textContent = text;
      input.setAttribute("aria-valuetext", text);
    };
  };
  // One of some words; set is called with it.  Returns what shows another one.
  const radios = (parent, title, group, words, set) => {
    const box = html("div", {className: "pg-axes", role: "radiogroup", ariaLabel: title}, parent);
    const inputs = words.map((value) => {
      const label = html("label", {}, box), input = html("input", {type: "radio", name: group, value, autocomplete: "off"}, label);
      label.append(value);
      input.onchange = () => set(value);
      return input;
    });
    return (value) => inputs.forEach((input) => (input.checked = input.value === value));
  };
  return {button, range, radios};
}

// Makes a button a method's: with its line and marker.
function chip(b, name, look) {
  b.className = "pg-chip";
  b.dataset.name = name;
  b.style.setProperty("--k", `var(--${name})`);
  const svg = make("svg", {viewBox: "0 0 30 12", "aria-hidden": true});
  make("path", {d: "M1 6H29", "stroke-dasharray": look.dash || "none"}, svg);
  make("path", {d: marker(look.marker, 4), transform: "translate(15 6)", class: "pg-mark"}, svg);
  b.prepend(svg);
}

// Copies a text, and says so.
function copier() {
  const copied = html("span", {className: "pg-copied", role: "status"});
  const copy = async (text, words) => {
    try {
      await navigator.clipboard.writeText(text);
      copied.textContent = words;
    } catch { // no clipboard here: show the text, ready to be copied by hand
      const field = html("input", {value: text, readOnly: true, ariaLabel: "Text to copy"});
      copied.replaceChildren(field);
      field.select();
    }
    setTimeout(() => (copied.textContent = ""), 8000);
  };
  return {copied, copy};
}

// A picture in `root` that holds one state with a model of the kernel, as long as `follow` gives it one.
function live(mount, root, config) {
  let model = null, ours = "";
  // Else JupyterLab takes the arrow keys of what has the focus.
  root.addEventListener("focusin", (event) => (event.target.dataset.lmSuppressShortcuts = true));
  const view = mount(root, config, (state) => {
    ours = JSON.stringify(state);
    model?.set("state", state);
    model?.save_changes();
  });
  const listen = () => {
    const state = model.get("state");
    if (JSON.stringify(state) !== ours) view.set(state);
  };
  view.follow = (given) => {
    if (given === model) return;
    model?.off("change:state", listen);
    model = given;
    model?.on("change:state", listen);
    if (model) listen();
  };
  root.playground = view;
  return view;
}

// Every figure of a page that is not yet live.  Each holds its configuration as JSON.  In a notebook it stands without
// the kernel too, and follows the model of its key from when the kernel has one.
function mountAll(mount, which) {
  if (typeof document === "undefined") return;
  for (const root of document.querySelectorAll(which)) {
    const store = root.querySelector("script[type='application/json']");
    if (!store) continue;
    const config = JSON.parse(store.textContent), view = live(mount, root, config);
    if (!config.key) continue;
    const follow = () => view.follow(globalThis.fcModels?.[config.key]);
    addEventListener("fc-models", follow);
    follow();
  }
}

// anywidget's form.  A model is known to the page as soon as the kernel has it; where a widget is shown by itself, it
// brings its own figure.
const widgetOf = (mount, className) => ({
  initialize: ({model}) => {
    const tell = (now) => {
      (globalThis.fcModels ||= {})[model.get("config").key] = now;
      dispatchEvent(new Event("fc-models"));
    };
    tell(model);
    return () => tell();
  },
  render: ({model, el}) => {
    const config = {...model.get("config"), state: model.get("state")}, root = html("figure", {className}, el);
    if (config.caption) html("figcaption", {textContent: config.caption}, root);
    const view = live(mount, root, config);
    view.follow(model);
    return () => {
      view.follow();
      view.destroy();
    };
  },
});
