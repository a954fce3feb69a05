// The picture of a mask: neurons of a small network are switched off one by one, and the gradient's gap follows.
// First the core, which knows no page (tests compare it with the package), then the picture.  Behind live.js.

// ---------------------------------------------------------------------------------------------------- the core

// A network is {W: [m, a] for each layer, b: [m], x: [N, a], y: [N]}, as lists; here one hidden layer.
const zeros = (like) => like.map((row) => (Array.isArray(row) ? row.map(() => 0) : 0));

// One pass with the kept hidden neurons: the gradient of the mean cross-entropy, and sums over samples for the scores.
function backward({W, b, x, y}, kept) {
  const n = y.length, dW = W.map(zeros), db = b.map(zeros), hidden = b[0].length;
  const behind = zeros(b[0]), before = zeros(b[0]), activation = zeros(b[0]);
  const dot = (u, v) => u.reduce((sum, w, i) => sum + w * v[i], 0);
  x.forEach((input, s) => {
    const z = b[0].map((v, j) => (kept[j] ? v + dot(W[0][j], input) : 0)), h = z.map((v) => max(v, 0));
    const logits = b[1].map((v, c) => v + W[1][c].reduce((sum, w, j) => sum + (kept[j] ? w * h[j] : 0), 0));
    const top = max(...logits), powers = logits.map((v) => Math.exp(v - top)), total = powers.reduce((a, v) => a + v, 0);
    const d = powers.map((v, c) => (v / total - (c === y[s] ? 1 : 0)) / n);
    d.forEach((v, c) => {
      db[1][c] += v;
      for (let j = 0; j < hidden; j++) dW[1][c][j] += v * h[j];
    });
    for (let j = 0; j < hidden; j++) {
      if (!kept[j]) continue;
      const back = d.reduce((sum, v, c) => sum + v * W[1][c][j], 0), own = z[j] > 0 ? back : 0;
      behind[j] += back;
      before[j] += own;
      activation[j] += h[j] / n;
      db[0][j] += own;
      input.forEach((v, i) => (dW[0][j][i] += own * v));
    }
  });
  return {dW, db, behind, before, activation};
}

const square = (v) => v * v, total = (values) => values.reduce((sum, v) => sum + v, 0);
const touching = ({dW, db}, j) => [...dW[0][j], db[0][j], ...dW[1].map((row) => row[j])]; // all entries of neuron j

// What of the whole network's gradient a mask cuts off, and how far the sub-model's own gradient is from it.
function gaps(net, kept, whole) {
  const part = backward(net, kept), masked = total(kept.map((on, j) => (on ? 0 : total(touching(whole, j).map(square)))));
  const changed = total(kept.map((on, j) => (on ? total(touching(whole, j).map((v, e) => square(v - touching(part, j)[e]))) : 0)));
  return {gap: sqrt(masked + changed + total(whole.db[1].map((v, c) => square(v - part.db[1][c])))), masked: sqrt(masked)};
}

function scores(whole) {
  const norm = (values) => sqrt(total(values.map(square))), all = whole.db[0].map((_, j) => j);
  return {
    "eq. 4-3": whole.behind.map(abs),
    "eq. 4-3 before ReLU": whole.before.map(abs),
    "mean activation": whole.activation,
    "row norm": all.map((j) => norm([...whole.dW[0][j], whole.db[0][j]])),
    "row and column norm": all.map((j) => norm(touching(whole, j))),
  };
}

// The k neurons of highest score as a mask; of equal ones the first.
function top(score, k) {
  const order = score.map((_, j) => j).sort((i, j) => score[j] - score[i] || i - j).slice(0, k);
  return score.map((_, j) => order.includes(j));
}

// All that the picture shows of a network and a mask: the mask's gaps, the least masked gap of its size, all masks of it.
function found(net, kept) {
  const every = kept.map(() => true), whole = backward(net, every), m = kept.length, k = kept.filter(Boolean).length;
  const among = Array.from({length: 2 ** m}, (_, code) => every.map((_, j) => Boolean((code >> j) & 1))).filter((mask) => mask.filter(Boolean).length === k);
  const masks = among.map((mask) => ({mask, ...gaps(net, mask, whole)})), picked = scores(whole);
  for (const name in picked) picked[name] = top(picked[name], k);
  return {...gaps(net, kept, whole), bound: min(...masks.map((v) => v.masked)), length: gaps(net, every.map(() => false), whole).masked, masks, picked};
}

const three = (v) => v.toPrecision(3), code = (mask) => mask.map(Number).join(""), bits = (text) => [...text].map((c) => c === "1");

// -------------------------------------------------------------------------------------------------- the picture

const W = 440, H = 290, CHART = {w: 340, h: 250, left: 46, right: 12, top: 12, bottom: 40};

// A mask's picture in `root`, a <figure>.  config: {name, caption, state: {kept, network}, networks, scores: {name: look}}.
function mount(root, config, onChange = () => {}) {
  const nets = config.networks, [inputs, hidden, outputs] = [nets[0].x[0].length, nets[0].b[0].length, nets[0].b[1].length];
  const initial = structuredClone(config.state);
  let s = structuredClone(initial);
  const place = (l, j) => [36 + (l * (W - 72)) / 2, H / 2 + (j - ([inputs, hidden, outputs][l] - 1) / 2) * 44];
  const draw = framed(() => render()), tell = settled(() => onChange(structuredClone(s)));
  const change = (patch, quiet = false) => {
    s = {...s, ...patch};
    draw();
    if (!quiet) tell();
  };
  const {button, range} = controlsThat(() => {});

  root.classList.add("fc-ready");
  const body = root.querySelector(".pg-body") || html("div", {className: "pg-body"});
  body.replaceChildren(); // the still picture
  root.prepend(body);
  const chips = html("div", {className: "pg-chips", role: "group", ariaLabel: "Keep the neurons of highest score"}, body);
  const stage = html("div", {className: "pg-stage"}, body), side = html("div", {className: "pg-side"}, body);
  const bar = html("div", {className: "pg-bar"}, body), says = html("p", {className: "pg-says", ariaLive: "polite"}, body);

  const plane = make("svg", {viewBox: `0 0 ${W} ${H}`, class: "pg-plane", role: "group"}, stage);
  make("rect", {width: W, height: H, rx: 8, class: "pg-paper"}, plane);
  const lines = pen(make("g", {class: "pg-lines", "aria-hidden": true}, plane));
  const ends = make("g", {class: "pg-ends", "aria-hidden": true}, plane);
  for (const [l, words] of [[0, "xyz"], [2, "ABC"]]) {
    [...words].forEach((word, j) => {
      const g = make("g", {transform: `translate(${place(l, j).map(px).join(" ")})`}, ends);
      make("circle", {r: 13}, g);
      make("text", {y: 4.5}, g, word);
    });
  }
  const flip = (j) => {
    const kept = bits(s.kept);
    kept[j] = !kept[j];
    change({kept: code(kept)});
  };
  const nodes = Array.from({length: hidden}, (_, j) => {
    const g = make("g", {class: "pg-unit", role: "button", tabindex: 0, transform: `translate(${place(1, j).map(px).join(" ")})`, "aria-label": `neuron ${j + 1}`}, plane);
    make("circle", {r: 22, class: "pg-touch"}, g);
    make("circle", {r: 15}, g);
    make("text", {y: 4.5}, g, j + 1);
    g.onclick = () => flip(j);
    g.onkeydown = (event) => {
      if (event.key !== " " && event.key !== "Enter") return;
      event.preventDefault();
      flip(j);
    };
    return g;
  });
  html("p", {className: "pg-key-line", textContent: "Click a neuron to drop it or to take it back."}, stage);

  const updates = [], chartBox = html("div", {className: "pg-chart"}, side);
  html("p", {className: "pg-title", textContent: "All masks with as many neurons"}, chartBox);
  const chart = make("svg", {viewBox: `0 0 ${CHART.w} ${CHART.h}`, role: "img"}, chartBox), onChart = pen(chart);
  html("p", {className: "pg-key-line", textContent: "■ this mask · ◯ the nearest gradient · dashed: no mask of this size lies left of it"}, chartBox);
  let now = found(nets[s.network - 1], bits(s.kept));
  for (const name of config.scores) {
    const b = button(chips, name, `The neurons of highest score: ${name}`, () => change({kept: code(now.picked[name])}));
    updates.push(() => b.setAttribute("aria-pressed", code(now.picked[name]) === s.kept));
  }
  updates.push(range(bar, "network", 1, nets.length, 1, () => s.network, (v) => change({network: v}), String));
  button(bar, "Reset", "Everything as it was at first", () => change(structuredClone(initial)));

  const render = () => {
    const kept = bits(s.kept), put = onChart;
    now = found(nets[s.network - 1], kept);
    lines.begin();
    const edges = [0, 1].flatMap((l) => [...Array([inputs, outputs][l])].flatMap((_, e) => kept.flatMap((on, j) => (on ? [`M${place(1, j).map(px).join(" ")}L${place(2 * l, e).map(px).join(" ")}`] : []))));
    lines("path", {d: edges.join("") || "M0 0"});
    lines.end();
    nodes.forEach((g, j) => g.setAttribute("aria-pressed", kept[j]));

    const {w, h, left, right, top: high, bottom} = CHART, far = 1.08 * max(...now.masks.map((v) => max(v.gap, v.masked)), 1e-9);
    const x = (v) => left + (v / far) * (w - left - right), y = (v) => high + (1 - v / far) * (h - high - bottom);
    const best = now.masks.reduce((a, v) => (v.gap < a.gap * (1 - 1e-9) ? v : a));
    put.begin();
    put("path", {d: `M${left} ${high}V${h - bottom}H${w - right}`, class: "pg-grid"});
    put("path", {d: `M${px(x(0))} ${px(y(0))}L${px(x(far))} ${px(y(far))}`, class: "pg-grid"});
    put("path", {d: `M${px(x(now.bound))} ${high}V${h - bottom}`, class: "pg-bound"});
    for (const v of now.masks) put("circle", {cx: px(x(v.masked)), cy: px(y(v.gap)), r: 4, class: "pg-other"});
    put("path", {d: marker("s", 6, x(now.masked), y(now.gap)), class: "pg-this"});
    put("circle", {cx: px(x(best.masked)), cy: px(y(best.gap)), r: 10, class: "pg-best"});
    put("text", {x: left, y: h - bottom + 15}, "0");
    put("text", {x: w - right, y: h - bottom + 15, "text-anchor": "end"}, short(far));
    put("text", {x: (left + w - right) / 2, y: h - 6, "text-anchor": "middle"}, "masked gap (of the proof)");
    put("text", {transform: `translate(14 ${(high + h - bottom) / 2}) rotate(-90)`, "text-anchor": "middle"}, "sub-model gap");
    put.end();
    updates.forEach((u) => u());

    const rank = (name) => now.masks.filter((v) => v[name] < now[name] * (1 - 1e-9)).length + 1, of = now.masks.length;
    const named = kept.flatMap((on, j) => (on ? [j + 1] : []));
    const text = `Network ${s.network}, ${named.length ? `neurons ${listed(named)}` : "no neuron"} kept: sub-model gap ${three(now.gap)}, rank ${rank("gap")} of ${of}; ` +
      `masked gap ${three(now.masked)}, rank ${rank("masked")}. No mask of this size has a gap below the bound ${three(now.bound)}.`;
    if (says.textContent !== text) {
      says.textContent = text;
      plane.setAttribute("aria-label", text);
      chart.setAttribute("aria-label", `${text} A point for each of the ${of} masks.`);
    }
  };
  render();
  return {get: () => structuredClone(s), set: (state) => change(state, true), render, destroy: () => {}};
}

const widget = widgetOf(mount, "fc-pg pg-masks");
export default widget;

mountAll(mount, "figure.pg-masks:not(.fc-ready)");
