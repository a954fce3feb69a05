// The playground of sub-models: which neurons each method gives to each client, and where their updates conflict.
// First the core, which knows no page (tests compare it with the package), then the picture.  Behind live.js.

// ---------------------------------------------------------------------------------------------------- the core

// A state is what a reader can set, and nothing else.  Names are those of the package.
const DEFAULTS = {
  clients: ["AB", "CD", "EF"],
  method: "FedDSE",
  ratio: 0.5,
  temperature: 0,
  lr: 0.3,
  local_steps: 5,
  rounds: 20,
  side: "outgoing",
  seed: 0,
};
const METHODS = ["FedAvg", "HeteroFL", "FederatedDropout", "FedRolex", "FedDSE", "FedGSE"], SIDES = ["outgoing", "incoming"];
const CLASSES = "ABCDEF", DEALT = ["AB", "CD", "EF", "BC", "DE", "FA"];
const SIZES = [2, 8, 6, 6], HIDDEN = SIZES[1] + SIZES[2], D = 120;
const TRAIN = 8, PUBLIC = 4, TEST = 16, SERVER = 100, TESTER = 101; // samples of a class; who has the last two
const RADIUS = 2, SPREAD = 0.45;
const INIT = 4, DATA = 6, DRAW = 10; // purposes of random numbers, as in the package

// Where the weights of layer l begin in the flat vector, and its biases.
const at = [], bias = [];
for (let l = 0, k = 0; l < 3; l++) {
  at.push(k);
  bias.push(k + SIZES[l] * SIZES[l + 1]);
  k += (SIZES[l] + 1) * SIZES[l + 1];
}

// Close to normal, of variance 1: four uniforms summed.
function normal(...parts) {
  const w = word(...parts);
  let sum = 2 ** -15 - 2;
  for (let k = 0n; k < 64n; k += 16n) sum += Number((w >> k) & 0xffffn) / 65536;
  return Math.sqrt(3) * sum;
}

const store = new Map(); // random numbers are hashes: what was drawn once stays
const remembered = (key, make) => {
  if (!store.has(key)) {
    if (store.size > 4000) store.clear();
    store.set(key, make());
  }
  return store.get(key);
};

// Points and labels, `count` of each class: x [N, 2], y [N].
function samples(seed, owner, classes, count) {
  const x = [], y = [];
  for (const label of classes) {
    const c = CLASSES.indexOf(label), t = (c * Math.PI) / 3, centre = [RADIUS * Math.cos(t), RADIUS * Math.sin(t)];
    x.push(...remembered(`${seed},${owner},${c}`, () => Array.from({length: 2 * count}, (_, k) => centre[k % 2] + SPREAD * normal(seed, DATA, owner, c, k >> 1, k % 2))));
    for (let k = 0; k < count; k++) y.push(c);
  }
  return {x, y, n: y.length};
}

function start(seed) {
  return remembered(`start ${seed}`, () => {
    const x = new Float64Array(D);
    for (let l = 0; l < 3; l++) {
      for (let k = at[l]; k < bias[l]; k++) x[k] = Math.sqrt(2 / SIZES[l]) * normal(seed, INIT, k);
      for (let k = bias[l]; k < bias[l] + SIZES[l + 1]; k++) x[k] = 0.1 * normal(seed, INIT, k);
    }
    return x;
  });
}

function problem(s) {
  const held = [...CLASSES].filter((c) => s.clients.some((own) => own.includes(c))).join("");
  return {
    n: s.clients.length, held, x0: start(s.seed),
    data: s.clients.map((own, i) => samples(s.seed, i, own, TRAIN)),
    open: samples(s.seed, SERVER, held, PUBLIC), test: samples(s.seed, TESTER, held, TEST),
    owned: s.clients.map((own) => [...CLASSES].map((c) => own.includes(c))),
  };
}

const ALL = SIZES.map((m) => Array.from({length: m}, (_, j) => j));
const out = SIZES.map((m) => new Float64Array(m)), back = SIZES.map((m) => new Float64Array(m));

// The network of the kept units on sample k: activations into `out`, probabilities of the classes at its end.
// owned: logits of other labels are replaced by 0.
function forward(w, keep, x, k, owned = null) {
  out[0][0] = x[2 * k];
  out[0][1] = x[2 * k + 1];
  for (let l = 0; l < 3; l++) {
    const from = keep[l], to = keep[l + 1], h = out[l], next = out[l + 1];
    for (let q = 0; q < to.length; q++) {
      const j = to[q], row = at[l] + SIZES[l] * j;
      let z = w[bias[l] + j];
      for (let p = 0; p < from.length; p++) z += w[row + from[p]] * h[from[p]];
      next[j] = l < 2 && z < 0 ? 0 : z;
    }
  }
  const p = out[3];
  if (owned) for (let c = 0; c < 6; c++) if (!owned[c]) p[c] = 0;
}
function softmax() {
  const p = out[3];
  let sum = 0, top = p[0];
  for (let c = 1; c < 6; c++) if (p[c] > top) top = p[c];
  for (let c = 0; c < 6; c++) sum += p[c] = Math.exp(p[c] - top);
  for (let c = 0; c < 6; c++) p[c] /= sum;
}

// The gradient of the mean cross-entropy by the kept entries, into g.  seen: called with the derivatives `back` of each
// sample by what enters the units.
function gradient(w, keep, {x, y, n}, g, owned = null, seen = null) {
  g?.fill(0);
  for (let k = 0; k < n; k++) {
    forward(w, keep, x, k, owned);
    softmax();
    for (let c = 0; c < 6; c++) back[3][c] = owned && !owned[c] ? 0 : (out[3][c] - (c === y[k])) / n;
    for (let l = 2; l >= 0; l--) {
      const a = SIZES[l], below = back[l], above = back[l + 1], from = keep[l], to = keep[l + 1], h = out[l];
      for (let p = 0; l && p < from.length; p++) {
        const i = from[p];
        let d = 0;
        if (h[i] > 0) for (let q = 0; q < to.length; q++) d += above[to[q]] * w[at[l] + a * to[q] + i];
        below[i] = d;
      }
      for (let q = 0; g && q < to.length; q++) {
        const j = to[q], d = above[j];
        if (!d) continue;
        g[bias[l] + j] += d;
        for (let p = 0; p < from.length; p++) g[at[l] + a * j + from[p]] += d * h[from[p]];
      }
    }
    seen?.();
  }
}

// The ceil(ratio m) units of highest score; equal ones, and those that differ by rounding alone, by their number.
function top(scores, ratio) {
  const m = scores.length, order = scores.map((_, j) => j).sort((a, b) => scores[b] - scores[a] || a - b);
  const room = 64 * 2 ** -52 * Math.max(...scores.map(Math.abs)), rank = [];
  let now = 0;
  order.forEach((j, k) => {
    if (k && scores[order[k - 1]] - scores[j] > room) now += 1;
    rank[j] = now;
  });
  order.sort((a, b) => rank[a] - rank[b] || a - b);
  return order.slice(0, Math.ceil(Math.round(ratio * m * 1e9) / 1e9)).sort((a, b) => a - b);
}

const uniform = (seed, t, i, l, j) => remembered(`u ${seed},${t},${i},${l},${j}`, () => (Number(word(seed, DRAW, t, i, l, j) >> 11n) + 0.5) / 2 ** 53);
const drawn = (s, t, i) => [0, 1].map((l) => ALL[l + 1].map((j) => uniform(s.seed, t, i, l, j)));

// What each method scores the hidden units of both layers by, for client i in round t; x: the server's model.
const SCORES = {
  HeteroFL: () => [0, 1].map((l) => ALL[l + 1].map((j) => -j)),
  FederatedDropout: (P, s, t, i) => drawn(s, t, i),
  FedRolex: (P, s, t) => [0, 1].map((l) => ALL[l + 1].map((j) => -((((j - t) % SIZES[l + 1]) + SIZES[l + 1]) % SIZES[l + 1]))),
  FedDSE: (P, s, t, i, x) => { // mean activation on the client's own data
    const h = [0, 1].map((l) => ALL[l + 1].map(() => 0)), {n} = P.data[i];
    for (let k = 0; k < n; k++) {
      forward(x, ALL, P.data[i].x, k);
      for (let l = 0; l < 2; l++) h[l].forEach((_, j) => (h[l][j] += out[l + 1][j] / n));
    }
    if (!s.temperature) return h;
    const u = drawn(s, t, i);
    return h.map((layer, l) => layer.map((v, j) => v / s.temperature - Math.log(-Math.log(u[l][j]))));
  },
  FedGSE: (P, s, t, i, x, last) => { // public data, labelled by the model that the client sent last
    const y = [], owned = P.owned[i], g = [0, 1].map((l) => ALL[l + 1].map(() => 0));
    for (let k = 0; k < P.open.n; k++) {
      forward(last || x, ALL, P.open.x, k);
      let best = -1;
      for (let c = 0; c < 6; c++) if (owned[c] && (best < 0 || out[3][c] > out[3][best])) best = c;
      y.push(best);
    }
    gradient(x, ALL, {...P.open, y}, null, owned, () => {
      for (let l = 0; l < 2; l++) g[l].forEach((_, j) => (g[l][j] += Math.abs(back[l + 1][j])));
    });
    return g;
  },
};

// The run of a method: the server's model, and of each round who kept what, the updates' conflicts, and the accuracy.
function begin(P) {
  return {t: 0, x: Float64Array.from(P.x0), last: new Array(P.n).fill(null), rounds: [], accuracy: [accuracy(P, P.x0)]};
}
function round(P, s, name, r) {
  const next = new Float64Array(D), count = new Int32Array(D), g = new Float64Array(D), updates = [], keeps = [];
  for (let i = 0; i < P.n; i++) {
    const full = name === "FedAvg" || s.ratio === 1;
    const keep = full ? ALL : [ALL[0], ...SCORES[name](P, s, r.t, i, r.x, r.last[i]).map((h) => top(h, s.ratio)), ALL[3]];
    const y = Float64Array.from(r.x), update = new Float64Array(D), sent = new Float64Array(D);
    for (let k = 0; k < s.local_steps; k++) {
      gradient(y, keep, P.data[i], g);
      for (let e = 0; e < D; e++) y[e] -= s.lr * g[e];
    }
    for (let l = 0; l < 3; l++) {
      for (const j of keep[l + 1]) {
        for (const e of [bias[l] + j, ...keep[l].map((a) => at[l] + SIZES[l] * j + a)]) {
          count[e] += 1;
          update[e] = y[e] - r.x[e];
          next[e] += update[e];
          sent[e] = y[e];
        }
      }
    }
    r.last[i] = sent;
    keeps.push(keep);
    updates.push(update);
  }
  r.rounds.push(compared(P, s, keeps, updates));
  for (let e = 0; e < D; e++) if (count[e]) r.x[e] += next[e] / count[e];
  r.t += 1;
  r.accuracy.push(accuracy(P, r.x));
}
function run(P, s, name, rounds) {
  const r = begin(P);
  for (let t = 0; t < rounds; t++) round(P, s, name, r);
  return r;
}

function accuracy(P, x) {
  let right = 0;
  for (let k = 0; k < P.test.n; k++) {
    forward(x, ALL, P.test.x, k);
    right += out[3].indexOf(Math.max(...out[3])) === P.test.y[k];
  }
  return right / P.test.n;
}

// The entries of hidden unit j of layer l that are compared: its incoming weights and bias, or its outgoing weights.
const ENTRIES = Object.fromEntries(SIDES.map((side) => [side, [0, 1].flatMap((l) => ALL[l + 1].map((j) => (
  side === "incoming" ? [bias[l] + j, ...ALL[l].map((a) => at[l] + SIZES[l] * j + a)] : ALL[l + 2].map((b) => at[l + 1] + SIZES[l + 1] * b + j)
)))]));
const WHOLE = Array.from({length: bias[2]}, (_, e) => e); // without the classifier's bias, which belongs to no unit

function cosine(u, v, entries) {
  let uv = 0, uu = 0, vv = 0;
  for (const e of entries) {
    uv += u[e] * v[e];
    uu += u[e] * u[e];
    vv += v[e] * v[e];
  }
  const lengths = Math.sqrt(uu) * Math.sqrt(vv);
  return lengths > 1e-24 ? uv / lengths : null;
}
const mean = (values) => {
  const there = values.filter((v) => v !== null);
  return there.length ? there.reduce((a, b) => a + b, 0) / there.length : null;
};
function compared(P, s, keeps, updates) {
  const units = keeps.map((keep) => [1, 2].flatMap((l) => ALL[l].map((j) => keep[l].includes(j)))), pairs = [];
  for (let i = 0; i < P.n; i++) for (let k = i + 1; k < P.n; k++) pairs.push([i, k]);
  return {
    units,
    conflict: ENTRIES[s.side].map((entries, j) => mean(pairs.map(([i, k]) => (units[i][j] && units[k][j] ? cosine(updates[i], updates[k], entries) : null)))),
    cosine: mean(pairs.map(([i, k]) => cosine(updates[i], updates[k], WHOLE))),
    shared: mean(pairs.map(([i, k]) => units[i].filter((on, j) => on && units[k][j]).length / units[i].filter(Boolean).length)),
  };
}

// ----------------------------------------------------------------------- states from outside: addresses, notebooks

// Lowest and highest value of each number, the same as in the package: "above" excludes the lowest, "whole" fractions.
const RANGE = {
  ratio: [0, 1, "above"], temperature: [0, 10], lr: [0, 10, "above"], local_steps: [1, 50, "whole"], rounds: [1, 60, "whole"],
  seed: [0, 1e6, "whole"],
};

// A state with everything in range: what is wrong in `given` is said in `problems` and left as it is in `old`.
function checked(given, old = DEFAULTS, problems = []) {
  const s = structuredClone(old);
  for (const name in RANGE) if (given[name] !== undefined) s[name] = finite(given[name], RANGE[name], old[name], name, problems);
  for (const [name, known] of [["method", METHODS], ["side", SIDES]]) {
    if (known.includes(given[name])) s[name] = given[name];
    else if (given[name] !== undefined) problems.push(`${name} ${given[name]} is not known; use ${known.join(", ")}.`);
  }
  if (given.clients !== undefined) {
    const own = Array.isArray(given.clients) ? given.clients : [];
    const wrong = own.findIndex((classes) => !/^[A-F]+$/.test(classes));
    if (own.length < 2 || own.length > 6) problems.push(`${own.length} clients were given; use 2 to 6.`);
    else if (wrong >= 0) problems.push(`Client ${wrong + 1} needs classes, some of A to F; the clients stay as they are.`);
    else s.clients = own.map((classes) => [...CLASSES].filter((c) => classes.includes(c)).join(""));
  }
  return s;
}

const toHash = (s) => Object.entries(s).map(([k, v]) => `${k}=${typeof v === "number" ? trim(v) : v}`).join("&");
function fromHash(text) {
  const given = {};
  for (const [k, v = ""] of text.split("&").map((part) => part.split("="))) {
    if (k === "clients") given[k] = v.split(",");
    else if (k in DEFAULTS) given[k] = k in RANGE ? (v === "" ? NaN : +v) : v;
  }
  return given;
}
const toPython = (s) => `fc.submodel_playground(${Object.entries(s).map(([k, v]) => `${k}=${JSON.stringify(v)}`).join(", ")})`;

// -------------------------------------------------------------------------------------------------- the picture

const W = 440, H = 400, CHART = {w: 300, h: 170, left: 40, right: 12, top: 10, bottom: 26};
const place = (l, j) => [36 + (l * (W - 72)) / 3, H / 2 + (j - (SIZES[l] - 1) / 2) * 48];
const NEURONS = [1, 2].flatMap((l) => ALL[l].map((j) => ({l, j, x: place(l, j)[0], y: place(l, j)[1]})));
// From where to where, as numbers of hidden neurons (others: -1), and how it is drawn.
const EDGES = [0, 1, 2].flatMap((l) => ALL[l].flatMap((a) => ALL[l + 1].map((b) => [
  l ? (l > 1 ? SIZES[1] : 0) + a : -1, l < 2 ? (l ? SIZES[1] : 0) + b : -1, `M${place(l, a).map(px).join(" ")}L${place(l + 1, b).map(px).join(" ")}`,
])));
const MEASURES = {
  accuracy: ["Accuracy on all clients' classes", (r) => r.accuracy, 0],
  shared: ["Share of a client's neurons that another one trains", (r) => [null, ...r.rounds.map((q) => q.shared)], 0],
  cosine: ["Mean cosine of two clients' updates", (r) => [null, ...r.rounds.map((q) => q.cosine)], -1],
};

// The part of a neuron's ring that is client i's, of n, clockwise from the top.
function sector(i, n) {
  const corner = (r, q) => {
    const t = 2 * Math.PI * (i + q) / n - Math.PI / 2 + (q ? -1 : 1) * 1.6 / r;
    return `${px(r * Math.cos(t))} ${px(r * Math.sin(t))}`;
  };
  return `M${corner(15.5, 0)}A15.5 15.5 0 0 1 ${corner(15.5, 1)}L${corner(22, 1)}A22 22 0 0 0 ${corner(22, 0)}Z`;
}
const two = (v) => (v === null ? "none" : short(Math.round(100 * v) / 100));
// As it stands in a neuron: −.4
const inside = (v) => (v === null ? "" : v.toFixed(1).replace("-", "−").replace("0.", ".").replace(/^−?\.0$/, "0").replace("1.0", "1"));

// A playground in `root`, a <figure>.  config: {name, caption, state, methods: {name: {label, colour, dark, marker, dash}}, clients: [{colour, dark}]}.
function mount(root, config, onChange = () => {}) {
  const initial = checked(config.state), looks = config.methods, id = config.name || "submodels", address = `#${id}:`;
  let s = structuredClone(initial), trouble = [];
  const fromAddress = () => {
    const given = behind(address);
    if (given === null) return false;
    trouble = [];
    s = checked(fromHash(given), initial, trouble);
    return true;
  };
  const linked = fromAddress(), still = matchMedia("(prefers-reduced-motion: reduce)");
  let shown = 1, playing = 0, selected = -1, measure = "accuracy";

  // ---- the runs, as far as they are computed: of what is shown at once, the rest in the pauses
  let P = problem(s), runs = {}, pause = 0;
  const upTo = (name, rounds) => {
    const r = (runs[name] ||= begin(P));
    while (r.t < rounds) round(P, s, name, r);
    return r;
  };
  const goOn = () => {
    pause = 0;
    const until = performance.now() + 8, order = [s.method, ...Object.keys(looks)];
    let name;
    while ((name = order.find((name) => (runs[name]?.t ?? 0) < s.rounds)) && performance.now() < until) upTo(name, (runs[name]?.t ?? 0) + 1);
    if (name) pause = setTimeout(goOn, 0);
    draw();
  };
  const anew = () => {
    P = problem(s);
    runs = {};
    shown = Math.min(shown, s.rounds);
    clearTimeout(pause);
    pause = setTimeout(goOn, 60);
    draw();
  };

  // ---- changes
  const draw = framed(() => render()), tell = settled(() => onChange(structuredClone(s)));
  const change = (patch, quiet = false) => {
    const before = toHash({...s, method: 0});
    trouble = [];
    s = checked(patch, s, trouble);
    if (toHash({...s, method: 0}) !== before) anew();
    else {
      clearTimeout(pause);
      pause = setTimeout(goOn, 60);
      draw();
    }
    if (!quiet) tell();
  };
  const stop = () => {
    clearInterval(playing);
    playing = 0;
    playButton.textContent = "Play";
    says.ariaLive = "polite";
  };
  const {button, range, radios} = controlsThat(() => stop());

  // ---- what stands on the page
  root.classList.add("fc-ready");
  const tint = (name, {colour, dark}) => root.style.setProperty(`--${name}`, `color-mix(in srgb, ${colour} var(--day), ${dark})`);
  for (const [name, look] of Object.entries(looks)) tint(name, look);
  config.clients.forEach((look, i) => tint(`client-${i}`, look));
  const body = root.querySelector(".pg-body") || html("div", {className: "pg-body"});
  body.replaceChildren(); // the still picture
  root.prepend(body);
  const chips = html("div", {className: "pg-chips", role: "group", ariaLabel: "Method"}, body);
  const stage = html("div", {className: "pg-stage"}, body), side = html("div", {className: "pg-side"}, body);
  const bar = html("div", {className: "pg-bar"}, body), says = html("p", {className: "pg-says", ariaLive: "polite"}, body);
  const more = html("details", {className: "pg-more"}, body);

  const plane = make("svg", {viewBox: `0 0 ${W} ${H}`, class: "pg-plane", role: "group"}, stage);
  make("rect", {width: W, height: H, rx: 8, class: "pg-paper"}, plane);
  const lines = pen(make("g", {class: "pg-lines", "aria-hidden": true}, plane));
  const ends = make("g", {class: "pg-ends", "aria-hidden": true}, plane);
  for (const [l, words] of [[0, "xy"], [3, CLASSES]]) {
    [...words].forEach((word, j) => {
      const g = make("g", {transform: `translate(${place(l, j).map(px).join(" ")})`}, ends);
      make("circle", {r: 13}, g);
      make("text", {y: 4.5}, g, word);
    });
  }
  const nodes = NEURONS.map(({x, y}) => {
    const g = make("g", {class: "pg-neuron", role: "img", transform: `translate(${px(x)} ${px(y)})`}, plane);
    return {g, put: pen(g), before: ""};
  });
  const notice = html("p", {className: "pg-notice", role: "status", hidden: true}, stage);
  html("p", {className: "pg-key-line", innerHTML: "<span class='pg-ring'></span> who trains the neuron, client 1 from the top on, clockwise<br><span class='pg-scale'></span> inside: the cosine of their updates, −1 where they pull apart"}, stage);

  // ---- controls
  const updates = [];
  for (const [name, look] of Object.entries(looks)) {
    const b = button(chips, look.label, "", () => {
      stop();
      change({method: name});
    });
    chip(b, name, look);
    updates.push(() => b.setAttribute("aria-pressed", s.method === name));
  }
  const who = html("div", {className: "pg-who", role: "group", ariaLabel: "Clients and their classes"}, side);
  const clients = () => {
    who.replaceChildren();
    s.clients.forEach((_, i) => {
      const b = button(who, `client ${i + 1}`, "Show this client's sub-model", () => {
        selected = selected === i ? -1 : i;
        draw();
      });
      b.className = "pg-chip pg-one";
      b.style.setProperty("--k", `var(--client-${i})`);
      b.u = () => b.setAttribute("aria-pressed", selected === i);
      for (const c of CLASSES) {
        const on = button(who, c, `Class ${c} of client ${i + 1}`, () => {
          stop();
          const own = s.clients[i], next = own.includes(c) ? own.replace(c, "") : own + c;
          change({clients: s.clients.map((v, k) => (k === i ? next : v))});
        });
        on.className = "pg-class";
        on.setAttribute("aria-label", `class ${c} of client ${i + 1}`);
        on.style.setProperty("--k", `var(--client-${i})`);
        on.u = () => on.setAttribute("aria-pressed", s.clients[i].includes(c));
      }
    });
  };
  updates.push(() => {
    if (who.children.length !== 7 * s.clients.length) {
      selected = Math.min(selected, s.clients.length - 1);
      clients();
    }
    for (const b of who.children) b.u();
  });
  const chartBox = html("div", {className: "pg-chart"}, side), title = html("p", {className: "pg-title"}, chartBox);
  const chart = make("svg", {viewBox: `0 0 ${CHART.w} ${CHART.h}`, role: "img"}, chartBox), onChart = pen(chart);
  const measures = radios(chartBox, "Measure", `${id}-measure`, Object.keys(MEASURES), (v) => {
    measure = v;
    draw();
  });
  updates.push(() => measures(measure));
  const slider = (parent, words, low, high, step, name, print = short, spoken) => {
    updates.push(range(parent, words, low, high, step, () => s[name], (v) => change({[name]: v}), print, {name, spoken}));
  };
  const sliders = html("div", {className: "pg-sliders"}, side);
  slider(sliders, "ratio r", 0.05, 1, 0.01, "ratio");
  const heat = html("div", {}, sliders);
  slider(heat, "FedDSE T", 0, 2, 0.01, "temperature", short, "temperature of FedDSE");
  updates.push(() => (heat.hidden = s.method !== "FedDSE"));

  const playButton = button(bar, "Play", "Watch the rounds, one after another", () => (playing ? stop() : play()));
  playButton.classList.add("pg-play");
  const step = () => {
    shown = shown >= s.rounds ? 1 : shown + 1;
    draw();
    if (shown === s.rounds) stop();
  };
  const play = () => {
    if (still.matches) return step(); // readers who ask for less motion see the rounds one by one
    playButton.textContent = "Pause";
    says.ariaLive = "off";
    playing = setInterval(() => (root.isConnected ? step() : stop()), 900);
    step();
  };
  button(bar, "Step", "One round more", () => {
    stop();
    step();
  });
  updates.push(range(bar, "round", 1, () => s.rounds, 1, () => shown, (v) => {
    shown = v;
    draw();
  }, (v) => `${v} of ${s.rounds}`, {name: "round"}));
  button(bar, "Reset", "Everything as it was at first", () => {
    stop();
    trouble = [];
    s = structuredClone(initial);
    [shown, selected, measure] = [1, -1, "accuracy"];
    if (location.hash.startsWith(address)) history.replaceState(null, "", location.pathname + location.search);
    anew();
    onChange(structuredClone(s));
  });
  const {copied, copy} = copier();
  if (!config.key) {
    button(bar, "Link", "Copy the address of exactly this picture", () => {
      history.replaceState(null, "", address + toHash(s));
      copy(location.href, "Link copied.");
    });
  }
  button(bar, "Python", "Copy the call that opens this picture in Jupyter", () => copy(`import fedcore as fc\n\npg = ${toPython(s)}\npg`, "Python copied."));
  bar.append(copied);

  html("summary", {textContent: "More settings"}, more);
  const rare = html("div", {className: "pg-sliders"}, more);
  updates.push(range(rare, "clients n", 2, 6, 1, () => s.clients.length, (n) => {
    change({clients: Array.from({length: n}, (_, i) => s.clients[i] || initial.clients[i] || DEALT[i])});
  }, String, {name: "clients"}));
  slider(rare, "local steps K", 1, 20, 1, "local_steps", String);
  slider(rare, "step size η", 0.01, 1, 0.01, "lr");
  slider(rare, "rounds", 1, 60, 1, "rounds", String);
  slider(rare, "seed of data and weights", 0, 20, 1, "seed", String);
  const weights = html("div", {className: "pg-range", textContent: "weights compared"}, rare);
  const sides = radios(weights, "Weights of a neuron that are compared", `${id}-side`, SIDES, (v) => change({side: v}));
  updates.push(() => sides(s.side));

  // ---- the drawing itself
  const render = () => {
    const r = upTo(s.method, shown), now = r.rounds[shown - 1], n = P.n;
    const trained = NEURONS.map((_, j) => now.units.flatMap((own, i) => (own[j] ? [i] : [])));
    root.dataset.round = shown;

    lines.begin();
    const web = (on) => EDGES.filter(([from, to]) => on(from) && on(to)).map((e) => e[2]).join("");
    lines("path", {d: web((j) => !trained[j] || trained[j].length)});
    if (selected >= 0) lines("path", {d: web((j) => now.units[selected][j] ?? true), class: "pg-mine", style: `--k:var(--client-${selected})`});
    lines.end();
    nodes.forEach((node, j) => {
      const {l, j: k} = NEURONS[j], cosine = now.conflict[j], by = trained[j], put = node.put;
      const words = `Neuron ${k + 1} of layer ${l}: ${by.length ? `trained by client${by.length > 1 ? "s" : ""} ${listed(by.map((i) => i + 1))}` : "not trained"}${cosine === null ? "" : `, cosine ${two(cosine)}`}`;
      const key = `${words} ${n} ${selected}`;
      if (key === node.before) return;
      node.before = key;
      node.g.setAttribute("aria-label", words);
      put.begin();
      put("circle", {r: 22, class: "pg-touch"});
      for (let i = 0; i < n; i++) put("path", {d: sector(i, n), class: by.includes(i) ? "pg-takes" : "pg-leaves", style: `--k:var(--client-${i})`});
      put("circle", {r: 14.5, class: by.length ? "pg-core" : "pg-core pg-idle", style: `--c:${Math.round(100 * Math.max(0, -(cosine ?? 0)))}%`});
      put("text", {y: 4.5}, inside(cosine));
      put.end();
    });

    drawChart();
    updates.forEach((u) => u());
    notice.hidden = !trouble.length;
    notice.textContent = few(trouble);
    const several = trained.filter((by) => by.length > 1).length, apart = now.conflict.filter((v) => v < 0).length;
    const text = `${looks[s.method].label}, round ${shown}: ${trained.filter((by) => by.length).length} of ${HIDDEN} hidden neurons are trained, ${several} by several clients; ` +
      `at ${apart} of these their updates pull apart. Two clients share ${Math.round(100 * now.shared)}% of their neurons, the cosine of their updates is ${two(now.cosine)}. ` +
      `Accuracy ${Math.round(100 * r.accuracy[shown])}%.`;
    if (says.textContent !== text) {
      says.textContent = text;
      plane.setAttribute("aria-label", `${text} A network of 2 inputs, 8 and 6 hidden neurons and 6 classes; clients with the classes ${listed(s.clients)}.`);
    }
  };
  const drawChart = () => {
    const {w, h, left, right, top, bottom} = CHART, [words, values, low] = MEASURES[measure], put = onChart, ends = [];
    if (title.textContent !== words) title.textContent = words;
    const x = (t) => left + (t / s.rounds) * (w - left - right), y = (v) => top + ((1 - v) / (1 - low)) * (h - top - bottom);
    put.begin();
    for (const v of low ? [1, 0, -1] : [1, 0.5, 0]) {
      put("path", {d: `M${left} ${px(y(v))}H${w - right}`, class: "pg-grid"});
      put("text", {x: left - 6, y: px(y(v) + 4), "text-anchor": "end"}, String(v).replace("-", "−"));
    }
    put("text", {x: left, y: h - 7}, "0");
    put("text", {x: w - right, y: h - 7, "text-anchor": "end"}, `${s.rounds} rounds`);
    put("path", {d: `M${px(x(shown))} ${top}V${h - bottom}`, class: "pg-grid"});
    for (const name of [...Object.keys(looks).filter((name) => name !== s.method), s.method]) {
      if (!runs[name]) continue;
      const line = values(runs[name]), look = looks[name], style = `--k:var(--${name})`;
      let d = "";
      line.forEach((v, t) => {
        if (v !== null) d += `${d ? "L" : "M"}${px(x(t))} ${px(y(v))}`;
      });
      const ours = name === s.method;
      put("path", {d, style, class: ours ? "pg-curve" : "pg-curve pg-ghost", "stroke-dasharray": look.dash || "none"});
      if (ours) put("path", {d: marker(look.marker, 4.5, x(shown), y(line[shown] ?? 0)), style, class: "pg-end"});
      if (runs[name].t >= shown) ends.push(`${look.label} ${two(line[shown])}`);
    }
    put.end();
    chart.setAttribute("aria-label", `${words} after round ${shown}: ${listed(ends)}.`);
  };

  anew();
  render();
  const follow = () => fromAddress() && anew();
  addEventListener("hashchange", follow);
  if (linked) root.scrollIntoView({block: "center"});
  return {
    get: () => structuredClone(s),
    set: (state) => {
      stop();
      change(state, true);
    },
    render,
    destroy: () => {
      stop();
      clearTimeout(pause);
      removeEventListener("hashchange", follow);
    },
  };
}

const widget = widgetOf(mount, "fc-pg pg-net");
export default widget;

mountAll(mount, "figure.pg-net:not(.fc-ready)");
