// The playground: federated methods on problems of two parameters, computed and drawn in the page itself.
// First the core, which knows no page (tests compare it with the package), then the picture.
// Behind live.js in one module: pages of the book carry it, notebooks load it as a widget, tests import it.

// ---------------------------------------------------------------------------------------------------- the core

const EPS = 1e-12; // added to norms, as in the package

// A state is what a reader can set, and nothing else.  Names are those of the package.
const DEFAULTS = {
  problem: "quadratic",
  clients: [
    {optimum: [-2.2, -0.4], curvature: [0.4, 2], angle: 55},
    {optimum: [2.1, -1], curvature: [0.2, 2.7], angle: 75},
  ],
  start: [-1.6, 1.9],
  methods: {FedAvg: {}, SCAFFOLD: {}},
  lr: 0.1,
  local_steps: 10,
  cohort: null,
  server_lr: 1,
  uneven: 0,
  rounds: 30,
  seed: 0,
  topology: "ring",
};
const TOPOLOGIES = ["ring", "complete", "star", "path"];

// Parameter of a method: its letter, range on the slider, and the value it starts from.
const HYPER = {
  FedProx: {mu: ["μ", 0, 3, 0.5]},
  FedUp: {alpha: ["α", 0, 0.3, 0.05]},
  FedDyn: {alpha: ["α", 0.01, 2, 0.3]},
  FedDC: {alpha: ["α", 0, 2, 0.1]},
  Mime: {beta: ["β", 0, 0.98, 0.5]},
  MimeLite: {beta: ["β", 0, 0.98, 0.5]},
  FedSAM: {rho: ["ρ", 0, 1, 0.2]},
  DFedSAM: {rho: ["ρ", 0, 1, 0.2]},
  DFedGAM: {rho: ["ρ", 0, 1, 0.2]},
  ProxSkip: {p: ["p", 0.02, 1, 0.2]},
  QGDSGDm: {beta: ["β", 0, 0.98, 0.5]},
};

// Where gradients and directions are put: a vector would be made millions of times a second.
let gx = 0, gy = 0, vx = 0, vy = 0;

const sigmoid = (z) => 1 / (1 + Math.exp(-z));

// The objectives of a state.  Quadratic: F_i = 0.5 (x - b_i)' A_i (x - b_i).  Logistic: the cross-entropy of four
// samples a_j whose labels are the probabilities sigmoid(a_j . b_i), so that b_i minimises it; its Hessian at x = 0 has
// the curvatures and axes that are given.
function problem(s) {
  const n = s.clients.length, logistic = s.problem === "logistic";
  const P = {n, logistic, A: new Float64Array(3 * n), b: new Float64Array(2 * n), a: new Float64Array(8 * n),
             q: new Float64Array(4 * n), K: new Int32Array(n), W: mixing(s.topology, n)};
  s.clients.forEach((c, i) => {
    const [l1, l2] = c.curvature, t = (c.angle * PI) / 180, u = cos(t), v = sin(t);
    P.b.set(c.optimum, 2 * i);
    P.A.set([l1 * u * u + l2 * v * v, (l1 - l2) * u * v, l1 * v * v + l2 * u * u], 3 * i);
    P.K[i] = max(1, Math.floor(s.local_steps * (1 - (n > 1 ? (s.uneven * i) / (n - 1) : 0)) + 0.5));
    if (logistic) {
      const p = sqrt(8 * l1), q = sqrt(8 * l2), h = Math.SQRT1_2;
      const along = [p * u, p * v], across = [-q * v, q * u];
      for (let k = 0; k < 2; k++) {
        P.a[8 * i + k] = along[k];
        P.a[8 * i + 2 + k] = across[k];
        P.a[8 * i + 4 + k] = h * (along[k] + across[k]);
        P.a[8 * i + 6 + k] = h * (along[k] - across[k]);
      }
      for (let j = 0; j < 4; j++) {
        P.q[4 * i + j] = sigmoid(P.a[8 * i + 2 * j] * c.optimum[0] + P.a[8 * i + 2 * j + 1] * c.optimum[1]);
      }
    }
  });
  P.optimum = optimum(P);
  return P;
}

// The weights of n clients that mix without a server, row by row: a ring's are 1/3, those of a star and a path Metropolis'.
function mixing(topology, n) {
  const W = new Float64Array(n * n), degree = new Int32Array(n);
  if (topology === "complete") return W.fill(1 / n);
  if (topology === "ring") {
    for (let i = 0; i < n; i++) for (const k of [i, (i + 1) % n, (i + n - 1) % n]) W[n * i + k] += 1 / 3;
    return W;
  }
  const pairs = Array.from({length: n - 1}, (_, i) => [topology === "star" ? 0 : i, i + 1]);
  for (const pair of pairs) for (const i of pair) degree[i] += 1;
  for (const [i, k] of pairs) W[n * i + k] = W[n * k + i] = 1 / (1 + max(degree[i], degree[k]));
  for (let i = 0; i < n; i++) W[n * i + i] = 1 - W.subarray(n * i, n * (i + 1)).reduce((a, b) => a + b, 0);
  return W;
}

// W Z for the clients' vectors Z: z_k stands at 2 k and 2 k + 1, so that of an index k >> 1 is the client and k & 1 the axis.
function mixed({n, W}, Z) {
  const out = new Float64Array(2 * n);
  for (let i = 0; i < n; i++) for (let k = 0; k < 2 * n; k++) out[2 * i + (k & 1)] += W[n * i + (k >> 1)] * Z[k];
  return out;
}

// The gradient of client i at (x, y), into gx and gy.
function gradient(P, i, x, y) {
  if (!P.logistic) {
    const ex = x - P.b[2 * i], ey = y - P.b[2 * i + 1], A = P.A, o = 3 * i;
    gx = A[o] * ex + A[o + 1] * ey;
    gy = A[o + 1] * ex + A[o + 2] * ey;
    return;
  }
  let sx = 0, sy = 0;
  for (let j = 0, o = 8 * i; j < 4; j++, o += 2) {
    const r = (sigmoid(P.a[o] * x + P.a[o + 1] * y) - P.q[4 * i + j]) / 4;
    sx += r * P.a[o];
    sy += r * P.a[o + 1];
  }
  gx = sx;
  gy = sy;
}

// The Hessian of client i at (x, y), [h11, h12, h22], into bend.
const bend = new Float64Array(3);
function hessian(P, i, x, y) {
  if (!P.logistic) {
    for (let k = 0; k < 3; k++) bend[k] = P.A[3 * i + k];
    return bend;
  }
  bend.fill(0);
  for (let j = 0, o = 8 * i; j < 4; j++, o += 2) {
    const p = sigmoid(P.a[o] * x + P.a[o + 1] * y), w = (p * (1 - p)) / 4;
    bend[0] += w * P.a[o] * P.a[o];
    bend[1] += w * P.a[o] * P.a[o + 1];
    bend[2] += w * P.a[o + 1] * P.a[o + 1];
  }
  return bend;
}

// F(x) of a logistic problem.
function objective(P, x, y) {
  let sum = 0;
  for (let k = 0; k < 4 * P.n; k++) {
    const z = P.a[2 * k] * x + P.a[2 * k + 1] * y;
    sum += (max(z, 0) + Math.log1p(Math.exp(-abs(z))) - P.q[k] * z) / 4;
  }
  return sum / P.n;
}

const eigenvalues = ([a, b, c]) => {
  const mid = (a + c) / 2, gap = hypot((a - c) / 2, b);
  return [mid - gap, mid + gap];
};

// The minimiser of F, or null where there is none or more than one.
function optimum(P) {
  const slope = (x, y) => {
    let sx = 0, sy = 0;
    for (let i = 0; i < P.n; i++) {
      gradient(P, i, x, y);
      sx += gx;
      sy += gy;
    }
    return [sx, sy];
  };
  let x = 0, y = 0;
  for (let i = 0; i < P.n; i++) {
    x += P.b[2 * i] / P.n;
    y += P.b[2 * i + 1] / P.n;
  }
  let g = slope(x, y);
  for (let k = 0; k < 60; k++) { // Newton: one step is exact on quadratics, but for rounding
    const S = [0, 0, 0];
    for (let i = 0; i < P.n; i++) hessian(P, i, x, y).forEach((h, k) => (S[k] += h));
    const det = S[0] * S[2] - S[1] * S[1], [low, high] = eigenvalues(S);
    if (!(low > 1e-10 * max(1, high))) return null;
    const dx = (S[2] * g[0] - S[1] * g[1]) / det, dy = (S[0] * g[1] - S[1] * g[0]) / det;
    let step = 1, next = null;
    for (; step > 1e-4; step /= 2) { // far out the sigmoid is flat: no step may make the gradient longer
      next = slope(x - step * dx, y - step * dy);
      if (hypot(...next) < hypot(...g)) break;
    }
    if (step <= 1e-4) break;
    x -= step * dx;
    y -= step * dy;
    g = next;
  }
  return [x, y];
}

// Floyd's draw of m of n clients: the cohorts of the package, to the bit.
const drawn = new Map(), everyone = [];
function cohort(seed, t, n, m) {
  if (m >= n) return (everyone[n] ||= Array.from({length: n}, (_, i) => i));
  const key = `${seed},${t},${n},${m}`;
  if (!drawn.has(key)) {
    const chosen = new Set();
    for (let j = n - m; j < n; j++) {
      const r = Number(word(seed, 1, t, j) % BigInt(j + 1));
      chosen.add(chosen.has(r) ? j : r);
    }
    if (drawn.size > 5000) drawn.clear();
    drawn.set(key, [...chosen].sort((a, b) => a - b));
  }
  return drawn.get(key);
}

// The clients of round t, and each one's number of local steps.  ProxSkip's number is drawn: after each step all clients
// communicate with probability p (17: the package's stream of random numbers for this).
const cohortOf = (P, s, name, t) => cohort(s.seed, t, P.n, METHODS[name].all || !s.cohort ? P.n : s.cohort);
function stepsOf(P, s, name, t) {
  if (!METHODS[name].tossed) return P.K;
  const {p} = parameters(s, name), u = (Number(word(s.seed, 17, t) >> 11n) + 0.5) / 2 ** 53;
  return new Int32Array(P.n).fill(p === 1 ? 1 : 1 + Math.floor(Math.log(u) / Math.log1p(-p)));
}

// A method is a direction, and what it does beside FedAvg's aggregate; without a server (gossip), `correct` sees the
// models before and after mixing; `all`: every client takes part.  r: the round, with the server's vectors (x, y),
// its states as pairs, and the clients' as arrays of pairs; `h` are the method's parameters.
const plain = (P) => (i, x, y) => {
  gradient(P, i, x, y);
  vx = gx;
  vy = gy;
};
const perturbed = (P, rho, hvp) => (i, x, y) => {
  gradient(P, i, x, y);
  if (rho > 0) {
    let ex = gx, ey = gy;
    if (hvp) { // along the gradient of the gradient's norm, H g
      hessian(P, i, x, y);
      ex = bend[0] * gx + bend[1] * gy;
      ey = bend[1] * gx + bend[2] * gy;
    }
    const scale = rho / (sqrt(ex * ex + ey * ey) + EPS);
    gradient(P, i, x + scale * ex, y + scale * ey);
  }
  vx = gx;
  vy = gy;
};
const sam = (P, r, {rho}) => perturbed(P, rho);
// c_i - c of SCAFFOLD's option II and of FedDC, after the local steps.
const variates = (P, r, end) => {
  let sx = 0, sy = 0;
  for (const i of r.cohort) {
    const k = r.lr * P.K[i];
    const cx = r.ci[2 * i] - r.c[0] + (r.x[0] - end[2 * i]) / k, cy = r.ci[2 * i + 1] - r.c[1] + (r.x[1] - end[2 * i + 1]) / k;
    sx += cx - r.ci[2 * i];
    sy += cy - r.ci[2 * i + 1];
    r.ci[2 * i] = cx;
    r.ci[2 * i + 1] = cy;
  }
  r.c = [r.c[0] + sx / P.n, r.c[1] + sy / P.n];
};
// h_i <- h_i + y_i - x of FedDyn and FedDC, and the server's step by their mean.
const integral = (P, r, end, mean) => {
  let sx = 0, sy = 0;
  for (const i of r.cohort) {
    sx += end[2 * i] - r.x[0];
    sy += end[2 * i + 1] - r.x[1];
    r.hi[2 * i] += end[2 * i] - r.x[0];
    r.hi[2 * i + 1] += end[2 * i + 1] - r.x[1];
  }
  r.h = [r.h[0] + sx / P.n, r.h[1] + sy / P.n];
  return [r.x[0] + r.server_lr * mean[0] + r.h[0], r.x[1] + r.server_lr * mean[1] + r.h[1]];
};
const ahead = (r, mean) => [r.x[0] + r.server_lr * mean[0], r.x[1] + r.server_lr * mean[1]];
const cohortGradient = (P, r) => {
  let sx = 0, sy = 0;
  for (const i of r.cohort) {
    gradient(P, i, r.x[0], r.x[1]);
    sx += gx;
    sy += gy;
  }
  return [sx / r.cohort.length, sy / r.cohort.length];
};
// The gradient minus the client's variate plus the server's.  Without a server the latter is 0, and the variates are
// the corrections of the package with the other sign.
const controlled = (P, r) => (i, x, y) => {
  gradient(P, i, x, y);
  vx = gx - r.ci[2 * i] + r.c[0];
  vy = gy - r.ci[2 * i + 1] + r.c[1];
};
// FedDC's direction, and FedDyn's, whose variates are 0.
const dynamic = (P, r, {alpha}) => (i, x, y) => {
  gradient(P, i, x, y);
  vx = gx + alpha * (x - r.x[0] + r.hi[2 * i]) - r.ci[2 * i] + r.c[0];
  vy = gy + alpha * (y - r.x[1] + r.hi[2 * i + 1]) - r.ci[2 * i + 1] + r.c[1];
};
const momentum = (b, s, C) => [(1 - b) * C[0] + b * s[0], (1 - b) * C[1] + b * s[1]];

const GOSSIP = {gossip: true, all: true};
const METHODS = {
  FedAvg: {direction: plain},
  FedProx: {
    direction: (P, r, {mu}) => (i, x, y) => {
      gradient(P, i, x, y);
      vx = gx + mu * (x - r.x[0]);
      vy = gy + mu * (y - r.x[1]);
    },
  },
  SCAFFOLD: {
    direction: controlled,
    aggregate: (P, r, end, mean) => {
      variates(P, r, end);
      return ahead(r, mean);
    },
  },
  FedUp: {
    direction: (P, r, {alpha}) => (i, x, y) => {
      gradient(P, i, x, y);
      vx = gx + (alpha / r.lr) * (r.previous[0] - r.x[0]) + alpha * (x - r.x[0]);
      vy = gy + (alpha / r.lr) * (r.previous[1] - r.x[1]) + alpha * (y - r.x[1]);
    },
    aggregate: (P, r, end, mean) => {
      r.previous = r.x;
      return ahead(r, mean);
    },
  },
  FedDyn: {direction: dynamic, aggregate: integral},
  FedDC: {
    direction: dynamic,
    aggregate: (P, r, end, mean) => {
      variates(P, r, end);
      return integral(P, r, end, mean);
    },
  },
  Mime: {
    direction: (P, r, {beta}) => {
      const C = (r.C = cohortGradient(P, r)), [x0, y0] = r.x, s = r.s;
      return (i, x, y) => {
        gradient(P, i, x0, y0);
        const ox = gx, oy = gy;
        gradient(P, i, x, y);
        vx = (1 - beta) * (gx - ox + C[0]) + beta * s[0];
        vy = (1 - beta) * (gy - oy + C[1]) + beta * s[1];
      };
    },
    aggregate: (P, r, end, mean, {beta}) => {
      r.s = momentum(beta, r.s, r.C);
      return ahead(r, mean);
    },
  },
  MimeLite: {
    direction: (P, r, {beta}) => (i, x, y) => {
      gradient(P, i, x, y);
      vx = (1 - beta) * gx + beta * r.s[0];
      vy = (1 - beta) * gy + beta * r.s[1];
    },
    aggregate: (P, r, end, mean, {beta}) => {
      r.s = momentum(beta, r.s, cohortGradient(P, r));
      return ahead(r, mean);
    },
  },
  FedSAM: {direction: sam},
  FedNova: {
    direction: plain,
    aggregate: (P, r, end) => {
      const m = r.cohort.length;
      let steps = 0, dx = 0, dy = 0;
      for (const i of r.cohort) {
        steps += P.K[i] / m;
        dx += (end[2 * i] - r.x[0]) / P.K[i] / m;
        dy += (end[2 * i + 1] - r.x[1]) / P.K[i] / m;
      }
      return ahead(r, [steps * dx, steps * dy]);
    },
  },
  ProxSkip: {
    direction: (P, r) => (i, x, y) => {
      gradient(P, i, x, y);
      vx = gx - r.hi[2 * i];
      vy = gy - r.hi[2 * i + 1];
    },
    all: true,
    tossed: true,
    aggregate: (P, r, end, mean, {p}) => {
      const x = [r.x[0] + mean[0], r.x[1] + mean[1]];
      end.forEach((y, k) => (r.hi[k] += (p / r.lr) * (x[k & 1] - y)));
      return x;
    },
  },
  DFedAvg: {direction: plain, ...GOSSIP},
  DFedSAM: {direction: sam, ...GOSSIP},
  DFedGAM: {direction: (P, r, {rho}) => perturbed(P, rho, true), ...GOSSIP},
  DSGT: {
    direction: controlled,
    ...GOSSIP,
    correct: (P, r, end) => {
      const z = end.map((y, k) => (r.X[k] - y) / (P.K[k >> 1] * r.lr));
      mixed(P, z).forEach((w, k) => (r.ci[k] += z[k] - w));
    },
  },
  ExactDiffusion: {
    direction: controlled,
    ...GOSSIP,
    correct: (P, r, end, X) => {
      X.forEach((x, k) => {
        X[k] = (x + end[k]) / 2;
        r.ci[k] += (X[k] - end[k]) / (max(...P.K) * r.lr);
      });
    },
  },
  QGDSGDm: {
    direction: (P, r, {beta}) => (i, x, y) => {
      gradient(P, i, x, y);
      vx = beta * r.mi[2 * i] + gx;
      vy = beta * r.mi[2 * i + 1] + gy;
    },
    ...GOSSIP,
    correct: (P, r, end, X, {beta}) => {
      X.forEach((x, k) => (r.mi[k] = beta * r.mi[k] + ((1 - beta) * (r.X[k] - x)) / (P.K[k >> 1] * r.lr)));
    },
  },
};

// The state before round 0: server vectors and clients' states, all at the start or zero.
function begin(s) {
  const n = s.clients.length, X = new Float64Array(2 * n);
  for (let i = 0; i < n; i++) X.set(s.start, 2 * i);
  return {t: 0, x: [...s.start], previous: [...s.start], c: [0, 0], h: [0, 0], s: [0, 0],
          ci: new Float64Array(2 * n), hi: new Float64Array(2 * n), mi: new Float64Array(2 * n), X, lr: s.lr, server_lr: s.server_lr, cohort: []};
}

// Round r.t of a method, in place.  trace: filled with the clients' local iterates, one list [x, y, x, y, ...] a client.
function round(P, s, name, r, trace) {
  const method = METHODS[name], h = parameters(s, name), n = P.n;
  r.cohort = cohortOf(P, s, name, r.t);
  const K = stepsOf(P, s, name, r.t), direction = method.direction(P, r, h), end = (r.end = new Float64Array(2 * n));
  let mx = 0, my = 0;
  for (const i of r.cohort) {
    let x = method.gossip ? r.X[2 * i] : r.x[0], y = method.gossip ? r.X[2 * i + 1] : r.x[1];
    const path = trace ? [x, y] : null;
    for (let k = 0; k < K[i]; k++) {
      direction(i, x, y);
      x -= r.lr * vx;
      y -= r.lr * vy;
      if (path) path.push(x, y);
    }
    end[2 * i] = x;
    end[2 * i + 1] = y;
    mx += (x - r.x[0]) / r.cohort.length;
    my += (y - r.x[1]) / r.cohort.length;
    if (trace) trace[i] = path;
  }
  if (method.gossip) {
    const X = mixed(P, end);
    method.correct?.(P, r, end, X, h);
    r.X = X;
    r.x = [0, 0];
    X.forEach((x, k) => (r.x[k & 1] += x / n));
  } else {
    r.x = method.aggregate ? method.aggregate(P, r, end, [mx, my], h) : ahead(r, [mx, my]);
  }
  r.t += 1;
}

function parameters(s, name) {
  const h = {};
  for (const [key, spec] of Object.entries(HYPER[name] || {})) h[key] = s.methods[name]?.[key] ?? spec[3];
  return h;
}

const FAR = 1e6;
const lost = (x) => !(abs(x[0]) < FAR && abs(x[1]) < FAR);

// `rounds` rounds of a method: the server's path [x, y, ...] of rounds + 1 points, shorter where it leaves all bounds.
// traces: for some rounds, the clients' local iterates.
function run(P, s, name, rounds, wanted = []) {
  const r = begin(s), path = [r.x[0], r.x[1]], traces = {};
  for (let t = 0; t < rounds; t++) {
    const trace = wanted.includes(t) ? new Array(P.n) : null;
    round(P, s, name, r, trace);
    if (trace) traces[t] = trace;
    if (lost(r.x)) return {path, traces, diverged: t + 1, last: r};
    path.push(r.x[0], r.x[1]);
  }
  return {path, traces, diverged: 0, last: r};
}

// Where a method ends up after at most `patience` more local steps and 2,000 rounds, or null where that is not seen.
// All clients: {at: a fixed point, reached when a round moves less than `near`}.  A part of them: {at: the mean of the
// later half of the rounds, away: the mean distance from the optimum in it, hovers: whether it keeps moving there}.
function longRun(P, s, name, r, patience = 3e5, near = 1e-9) {
  const part = s.cohort && !METHODS[name].all, late = [];
  const each = METHODS[name].tossed ? 1 / parameters(s, name).p : s.local_steps;
  const rounds = Math.floor(min(2000, patience / ((part ? s.cohort : P.n) * each)));
  if (part && (rounds < 40 || !P.optimum)) return null;
  for (let t = 0; t < rounds; t++) {
    const [x, y] = r.x;
    round(P, s, name, r);
    if (lost(r.x)) return null;
    if (!part && t > 2 && hypot(r.x[0] - x, r.x[1] - y) < near) return {at: r.x};
    if (part && 2 * t >= rounds) late.push(r.x);
  }
  if (!part) return null;
  const mean = (f, points = late) => points.reduce((sum, x) => sum + f(x), 0) / points.length;
  const from = ([u, v]) => ([x, y]) => hypot(x - u, y - v), far = from(P.optimum), half = late.length >> 1;
  const before = mean(far, late.slice(0, half)), after = mean(far, late.slice(half));
  if (abs(before - after) > 0.25 * before && before > 1e-3) return null; // still on its way
  const at = [mean((x) => x[0]), mean((x) => x[1])], away = mean(far);
  return {at, away, hovers: away >= 1e-3 && mean(from(at)) > 0.02 * away};
}

// What cannot go well with a state, in words a reader can act on.
function warnings(P, s) {
  const out = [];
  let steepest = 0, who = 0;
  s.clients.forEach((c, i) => {
    const [low, high] = [min(...c.curvature), max(...c.curvature)];
    if (high > steepest) [steepest, who] = [high, i];
    if (low < 0) out.push(`Client ${i + 1} has the curvature ${short(low)} < 0: it has no minimum, its steps run away.`);
    else if (low === 0) out.push(`Client ${i + 1} has the curvature 0: its minimum is a line, not a point.`);
  });
  if (!P.optimum) out.push("The clients' mean F has no single minimum: give some client more curvature.");
  if (s.lr * steepest > 2) {
    out.push(`η · curvature is ${short(s.lr * steepest)} for client ${who + 1}, and local steps grow beyond 2: use η < ${short(2 / steepest)}.`);
  }
  return out;
}

// ----------------------------------------------------------------------- states from outside: addresses, notebooks

// Lowest and highest value of each number, the same as in the package: "above" excludes the lowest, "whole" fractions.
const RANGE = {
  lr: [0, 10, "above"], local_steps: [1, 200, "whole"], server_lr: [0, 10, "above"], uneven: [0, 1], rounds: [1, 200, "whole"],
  seed: [0, 1e6, "whole"], place: [-1e3, 1e3], curvature: [-1e3, 1e3], angle: [-1e4, 1e4],
  mu: [0, 1e3], alpha: [0, 1e3], beta: [0, 0.999], rho: [0, 1e3], p: [0.01, 1], FedDyn: {alpha: [0, 1e3, "above"]},
};

// A state with everything in range: what is wrong in `given` is said in `problems` and left as it is in `old`.  States
// share what is equal, and nothing in them is changed.
function checked(given, old = DEFAULTS, problems = []) {
  const s = {...old};
  const set = (name) => {
    if (given[name] !== undefined) s[name] = finite(given[name], RANGE[name], old[name], name, problems);
  };
  ["lr", "local_steps", "server_lr", "uneven", "rounds", "seed"].forEach(set);
  for (const [name, known] of [["problem", ["quadratic", "logistic"]], ["topology", TOPOLOGIES]]) {
    if (known.includes(given[name])) s[name] = given[name];
    else if (given[name] !== undefined) problems.push(`${name} ${given[name]} is not known; use ${known.join(" or ")}.`);
  }
  const pair = (v, was, range, name) => {
    const two = Array.isArray(v) && v.length === 2 ? v : [NaN, NaN];
    return two.map((v, k) => finite(v, range, was[k], name, problems));
  };
  if (given.start !== undefined) s.start = pair(given.start, s.start, RANGE.place, "start");
  if (given.clients !== undefined) {
    if (!Array.isArray(given.clients) || given.clients.length < 2 || given.clients.length > 8) {
      problems.push(`${given.clients?.length ?? 0} clients were given; use 2 to 8.`);
    } else {
      s.clients = given.clients.map((c, i) => {
        const was = old.clients[i] || placed(i);
        if (c === was) return c;
        return {
          optimum: pair(c.optimum ?? was.optimum, was.optimum, RANGE.place, `optimum of client ${i + 1}`),
          curvature: pair(c.curvature ?? was.curvature, was.curvature, RANGE.curvature, `curvature of client ${i + 1}`),
          angle: finite(c.angle ?? was.angle, RANGE.angle, was.angle, `angle of client ${i + 1}`, problems),
        };
      });
    }
  }
  if (s.problem === "logistic") {
    s.clients = s.clients.map((c, i) => {
      if (min(...c.curvature) >= 0) return c;
      problems.push(`A logistic problem has no negative curvature; client ${i + 1} gets the absolute value.`);
      return {...c, curvature: c.curvature.map(abs)};
    });
  }
  const n = s.clients.length;
  if (given.cohort !== undefined) s.cohort = given.cohort === null ? null : finite(given.cohort, [1, n, "whole"], old.cohort ?? n, "cohort", problems);
  if (s.cohort >= n) s.cohort = null;
  if (given.methods !== undefined) {
    s.methods = {};
    for (const [name, h] of Object.entries(given.methods)) {
      if (!Object.hasOwn(METHODS, name)) {
        problems.push(`The playground has no method ${name}.`);
        continue;
      }
      s.methods[name] = {};
      for (const [key, [letter, , , start]] of Object.entries(HYPER[name] || {})) {
        const was = old.methods[name]?.[key] ?? start;
        s.methods[name][key] = finite(h?.[key] ?? was, RANGE[name]?.[key] ?? RANGE[key], was, `${name}'s ${letter}`, problems);
      }
    }
  }
  return s;
}

// Where the i-th client stands when a reader adds one, and none was there at first.
const PLACES = [[1.9, 1.4], [-0.8, -1.8], [-2.3, 1], [0.9, -2], [0.4, 2.1], [2.5, 0.2]];
const placed = (i) => (i < 2 ? structuredClone(DEFAULTS.clients[i]) : {optimum: [...PLACES[i - 2]], curvature: [0.4, i % 2 ? 2 : 1.2], angle: 40 * (i - 2)});

// As an address's fragment, readable: problem=quadratic&clients=-1.6,.8,.3,2,-20;...
function toHash(s) {
  const clients = s.clients.map((c) => [...c.optimum, ...c.curvature, c.angle].map(trim).join(",")).join(";");
  const methods = Object.keys(s.methods).map((name) => [name, ...Object.values(parameters(s, name)).map(trim)].join(":")).join(",");
  const parts = {problem: s.problem, topology: s.topology, clients, start: s.start.map(trim).join(","), methods};
  for (const name of ["lr", "local_steps", "server_lr", "uneven", "rounds", "seed"]) parts[name] = trim(s[name]);
  parts.cohort = s.cohort ?? "all";
  return Object.entries(parts).map(([k, v]) => `${k}=${v}`).join("&");
}
function fromHash(text) {
  const given = {};
  for (const part of text.split("&")) {
    const [k, v = ""] = part.split("=");
    if (k === "clients") {
      given.clients = v.split(";").map((c) => {
        const [x, y, l1, l2, angle] = c.split(",").map((v) => (v === "" ? NaN : +v));
        return {optimum: [x, y], curvature: [l1, l2], angle};
      });
    } else if (k === "start") given.start = v.split(",").map(Number);
    else if (k === "methods") {
      given.methods = {};
      for (const one of v.split(",").filter(Boolean)) {
        const [name, ...h] = one.split(":");
        given.methods[name] = Object.fromEntries(Object.keys(HYPER[name] || {}).map((key, k) => [key, h[k] === undefined ? undefined : +h[k]]));
      }
    } else if (k === "cohort") given.cohort = v === "all" ? null : +v;
    else if (k in DEFAULTS) given[k] = ["problem", "topology"].includes(k) ? v : v === "" ? NaN : +v;
  }
  return given;
}
function toPython(s) {
  const pair = (v) => `(${v.map(trim).join(", ")})`;
  const clients = s.clients.map((c) => `    dict(optimum=${pair(c.optimum)}, curvature=${pair(c.curvature)}, angle=${trim(c.angle)}),`);
  const methods = Object.keys(s.methods).map((name) => `fc.${name}(${Object.entries(parameters(s, name)).map(([k, v]) => `${k}=${trim(v)}`).join(", ")})`);
  const rest = ["lr", "local_steps", "server_lr", "uneven", "rounds", "seed"].map((name) => `${name}=${trim(s[name])}`);
  return `fc.playground(clients=[\n${clients.join("\n")}\n], methods=[${methods.join(", ")}], problem="${s.problem}", topology="${s.topology}", ` +
    `start=${pair(s.start)}, cohort=${s.cohort ?? "None"}, ${rest.join(", ")})`;
}

// -------------------------------------------------------------------------------------------------- the picture

const W = 440, H = 400; // the plane's own units; the page scales it
const CHART = {w: 300, h: 190, left: 40, right: 12, top: 10, bottom: 30};
// Level lines of F by marching squares, for objectives whose levels are no ellipses: one path for all levels.
function levelLines(f, levels, nx = 44, ny = 40) {
  const v = new Float64Array((nx + 1) * (ny + 1)), at = (i, j) => v[j * (nx + 1) + i];
  for (let j = 0; j <= ny; j++) for (let i = 0; i <= nx; i++) v[j * (nx + 1) + i] = f((i * W) / nx, (j * H) / ny);
  const out = [], corner = [[0, 0], [1, 0], [1, 1], [0, 1]];
  for (const level of levels) {
    for (let j = 0; j < ny; j++) {
      for (let i = 0; i < nx; i++) {
        const c = [at(i, j), at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)];
        if (min(...c) > level || max(...c) < level) continue;
        const cuts = [];
        for (let k = 0; k < 4; k++) {
          const a = c[k], b = c[(k + 1) % 4];
          if (a < level === b < level) continue;
          const q = (level - a) / (b - a), [[x0, y0], [x1, y1]] = [corner[k], corner[(k + 1) % 4]];
          cuts.push(`${px(((i + x0 + q * (x1 - x0)) * W) / nx)} ${px(((j + y0 + q * (y1 - y0)) * H) / ny)}`);
        }
        for (let k = 0; k + 1 < cuts.length; k += 2) out.push(`M${cuts[k]}L${cuts[k + 1]}`);
      }
    }
  }
  return out.join("");
}

// What a method has come to, as a sentence.  fixed: how far its fixed point, or the mean of where it hovers, is from the
// optimum.  hovers: null, or how far the method itself is from it on average.
function told(name, d, fixed, diverged, rounds, hovers = null, part = "") {
  const after = `after ${rounds} round${rounds === 1 ? "" : "s"}`;
  if (diverged) return `${name} runs away in round ${diverged}.`;
  if (d === null) return "";
  if (d < 1e-3) return `${name} reaches the optimum (${short(d)} ${after}).`;
  if (hovers !== null) return `${name} is ${short(d)} from the optimum ${after} and, with ${part} per round, hovers ${short(hovers)} from it on average.`;
  if (fixed === null || fixed < 1e-3) return `${name} is ${short(d)} from the optimum ${after}.`;
  if (abs(d - fixed) < 0.02 * fixed) return `${name} stops ${short(fixed)} away from the optimum.`;
  return `${name} is ${short(d)} from the optimum ${after}, on its way to a fixed point ${short(fixed)} from it.`;
}

// A playground in `root`, a <figure>.  config: {name, caption, state, methods: {name: {colour, marker, dash, down, up,
// gradients, full}}}.  Returns {get, set}; onChange(state) follows every change by hand.
let mounted = 0;
function mount(root, config, onChange = () => {}) {
  const initial = checked(config.state), looks = config.methods, id = config.name || "playground";
  let s = structuredClone(initial), trouble = [], remembered = structuredClone(initial.methods);
  const address = `#${id}:`;
  const fromAddress = () => {
    const given = behind(address);
    if (given === null) return false;
    trouble = [];
    s = checked(fromHash(given), initial, trouble);
    return true;
  };
  const linked = fromAddress();
  let shown = s.rounds, playing = 0, selected = -1, axis = "rounds", dragging = null, all = false;
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  // ---- what stands on the page
  root.classList.add("fc-ready");
  for (const [name, {colour, dark}] of Object.entries(looks)) root.style.setProperty(`--${name}`, `color-mix(in srgb, ${colour} var(--day), ${dark})`);
  const body = root.querySelector(".pg-body") || html("div", {className: "pg-body"});
  body.replaceChildren(); // the still picture
  root.prepend(body);
  const chips = html("div", {className: "pg-chips", role: "group", ariaLabel: "Methods"}, body);
  const stage = html("div", {className: "pg-stage"}, body), side = html("div", {className: "pg-side"}, body);
  const bar = html("div", {className: "pg-bar"}, body), says = html("p", {className: "pg-says", ariaLive: "polite"}, body);
  const more = html("details", {className: "pg-more"}, body);

  const plane = make("svg", {viewBox: `0 0 ${W} ${H}`, class: "pg-plane", role: "group"}, stage);
  make("rect", {width: W, height: H, rx: 8, class: "pg-paper"}, plane);
  ground(plane, W, H);
  const layer = {}, put = {};
  for (const name of ["contours", "ellipses", "traces", "paths", "fixed", "star", "words", "now"]) {
    layer[name] = make("g", {class: `pg-${name}`, "aria-hidden": true}, plane);
    put[name] = pen(layer[name]);
  }
  const handles = make("g", {class: "pg-handles"}, plane);
  const notice = html("p", {className: "pg-notice", role: "status", hidden: true}, stage);

  // ---- the window: fixed while a hand moves things, wide enough for all of them
  let half = 3.05;
  const fit = () => {
    const far = max(...s.clients.flatMap((c) => c.optimum.map(abs)), ...s.start.map(abs));
    half = max(3.05, 1.2 * far);
  };
  fit();
  const unit = () => W / 2 / half, X = (x) => W / 2 + x * unit(), Y = (y) => H / 2 - y * unit();
  const at = ([x, y]) => `${px(X(x))} ${px(Y(y))}`;
  const toWorld = (event) => { // the page may scroll and grow under a hand that holds something
    const box = plane.getBoundingClientRect(), k = W / box.width;
    return [((event.clientX - box.left) * k - W / 2) / unit(), (H / 2 - (event.clientY - box.top) * k) / unit()];
  };
  const bounded = (v, edge) => max(-edge, min(edge, v));
  const place = ([x, y]) => [x, y].map((v, k) => Math.round(1000 * bounded(v, half * (k ? H / W : 1) * 0.97)) / 1000);

  // ---- changes
  const draw = framed(() => render()), tell = settled(() => onChange(structuredClone(s)));
  const change = (patch, quiet = false) => {
    trouble = [];
    const atEnd = shown === s.rounds;
    s = checked(patch, s, trouble);
    Object.assign(remembered, s.methods);
    if (atEnd || shown > s.rounds) shown = s.rounds;
    draw();
    if (!quiet) tell();
  };
  const client = (i, patch) => change({clients: s.clients.map((c, k) => (k === i ? {...c, ...patch} : c))});

  // ---- handles: every point that a hand can move, also by arrow keys
  const handle = (kind, shapes, words, move, where) => {
    const g = make("g", {class: `pg-handle pg-${kind}`, role: "slider", tabindex: 0, "aria-roledescription": "point in the plane",
                         "aria-label": words}, handles);
    const parts = [["circle", {r: 22, class: "pg-touch"}], ...shapes].map(([tag, attributes, dx = 0, dy = 0, text]) => ({e: make(tag, attributes, g, text), c: tag === "circle" ? "c" : "", dx, dy}));
    g.addEventListener("pointerdown", (event) => {
      if (event.button) return; // of a mouse, another than the first
      event.preventDefault();
      stop();
      g.focus({preventScroll: true});
      g.setPointerCapture(event.pointerId);
      const [x, y] = toWorld(event), [x0, y0] = where();
      dragging = {g, dx: x0 - x, dy: y0 - y};
      root.classList.add("pg-dragging");
    });
    g.addEventListener("pointermove", (event) => {
      if (dragging?.g !== g) return;
      const [x, y] = toWorld(event);
      move([x + dragging.dx, y + dragging.dy]);
    });
    g.addEventListener("lostpointercapture", () => { // after every up and cancel
      if (dragging?.g !== g) return;
      dragging = null;
      root.classList.remove("pg-dragging");
      draw();
    });
    g.addEventListener("keydown", (event) => {
      const step = event.shiftKey ? 0.25 : 0.05;
      const by = {ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step]}[event.key];
      if (!by || event.altKey || event.ctrlKey || event.metaKey) return; // those are the browser's
      event.preventDefault();
      stop();
      const [x, y] = where();
      move([x + by[0], y + by[1]]);
    });
    g.place = ([x, y], text) => {
      for (const {e, c, dx, dy} of parts) {
        e.setAttribute(`${c}x`, px(X(x) + dx));
        e.setAttribute(`${c}y`, px(Y(y) + dy));
      }
      if (dragging) return; // told when the hand lets go
      for (const [name, v] of [["min", px(-half)], ["max", px(half)], ["now", x.toFixed(3)], ["text", text()]]) g.setAttribute(`aria-value${name}`, v);
    };
    return g;
  };
  const spoken = ([x, y]) => `x ${short(+x.toFixed(3))}, y ${short(+y.toFixed(3))}`;
  const RADIUS = 0.55; // of the ellipse of curvature 1, in units of the plane
  const radius = (l) => RADIUS / sqrt(max(l, 0.012));
  const axisOf = (c, k) => {
    const t = ((c.angle + 90 * k) * PI) / 180;
    return [cos(t), sin(t)];
  };
  const axisEnd = (c, k) => {
    const [u, v] = axisOf(c, k), r = radius(c.curvature[k]);
    return [c.optimum[0] + r * u, c.optimum[1] + r * v];
  };
  const dragAxis = (i, k, [x, y]) => {
    const c = s.clients[i], dx = x - c.optimum[0], dy = y - c.optimum[1], r = max(0.12, min(5, hypot(dx, dy)));
    const curvature = [...c.curvature];
    curvature[k] = +((RADIUS / r) ** 2).toPrecision(4);
    client(i, {curvature, angle: Math.round(10 * ((Math.atan2(dy, dx) * 180) / PI - 90 * k)) / 10});
  };
  const select = (i) => {
    if (selected === i) return;
    selected = i;
    draw();
  };
  let points = [];
  const build = () => {
    handles.replaceChildren();
    points = s.clients.map((_, i) => {
      const g = handle("client", [["rect", {width: 22, height: 22, rx: 5}, -11, -11], ["text", {}, 0, 4.6, i + 1]], `Optimum of client ${i + 1}`, (p) => client(i, {optimum: place(p)}), () => s.clients[i].optimum);
      const ends = [0, 1].map((k) => handle("axis", [["circle", {r: 6}]], `Axis ${k + 1} of client ${i + 1}'s ellipse`,
        (p) => dragAxis(i, k, p), () => axisEnd(s.clients[i], k)));
      for (const e of [g, ...ends]) e.addEventListener("focus", () => select(i));
      return {g, ends};
    });
    const start = handle("start", [["circle", {r: 8}], ["circle", {r: 2.5, class: "pg-dot"}]], "Start of the server", (p) => change({start: place(p)}), () => s.start);
    start.addEventListener("focus", () => select(-1));
    points.start = start;
  };
  plane.addEventListener("pointerdown", (event) => {
    if (!event.target.closest(".pg-handle")) select(-1);
  });

  // ---- controls
  const {button, range, radios} = controlsThat(() => stop());
  let updates = [];
  const lasting = (u) => {
    u.lasting = true;
    updates.push(u);
  };

  const methodChip = (name) => {
    const b = button(chips, name, "", () => {
      const methods = {...s.methods};
      if (name in methods) delete methods[name];
      else methods[name] = remembered[name] || {};
      // in the order of the chips, so that colours keep their place
      change({methods: Object.fromEntries(Object.keys(looks).filter((m) => m in methods).map((m) => [m, methods[m]]))});
      controls();
      chips.querySelector(`[data-name="${name}"]`)?.focus();
    });
    chip(b, name, looks[name]);
    b.setAttribute("aria-pressed", name in s.methods);
  };
  const USUAL = ["FedAvg", "SCAFFOLD", "FedProx", "FedUp", "FedDyn"];
  let sliders, chart;
  // Everything that depends on which methods and how many clients there are; the rest is made once.
  const controls = () => {
    updates = updates.filter((u) => u.lasting);
    chips.replaceChildren();
    const known = Object.keys(looks);
    const first = known.filter((name) => all || name in s.methods || name in initial.methods || USUAL.includes(name));
    first.forEach(methodChip);
    const rest = known.length - first.length;
    if (rest || all) {
      const b = button(chips, all ? "fewer" : `${rest} more`, "Show all methods of the playground", () => {
        all = !all;
        controls();
        chips.querySelector(".pg-all").focus();
      });
      b.className = "pg-chip pg-all";
      b.setAttribute("aria-expanded", all);
    }
    sliders.replaceChildren();
    const add = (...given) => updates.push(range(sliders, ...given));
    add("local steps K", 1, 50, 1, () => s.local_steps, (v) => change({local_steps: v}), String, {name: "local_steps"});
    add("step size η", 0.005, 1.2, 0.005, () => s.lr, (v) => change({lr: v}), short, {name: "lr"});
    for (const name of Object.keys(s.methods)) {
      for (const [key, [letter, low, high]] of Object.entries(HYPER[name] || {})) {
        add(`${name} ${letter}`, low, high, 0.01, () => parameters(s, name)[key], (v) => change({methods: {...s.methods, [name]: {...s.methods[name], [key]: v}}}),
          short, {name: `${name}.${key}`, method: name, spoken: `${name}, ${key}`});
      }
    }
    updates.forEach((u) => u());
  };

  // the side: chart above, sliders below
  const chartBox = html("div", {className: "pg-chart"}, side);
  html("p", {className: "pg-title", textContent: "Distance to the optimum"}, chartBox);
  chart = make("svg", {viewBox: `0 0 ${CHART.w} ${CHART.h}`, role: "img"}, chartBox);
  ground(chart, CHART.w, CHART.h);
  radios(chartBox, "Distance to the optimum, against", `${id}-${++mounted}-axis`, ["rounds", "gradients", "bytes"], (key) => {
    axis = key;
    draw();
  })(axis);
  sliders = html("div", {className: "pg-sliders"}, side);

  // the bar: play, step, reset, round, share
  const playButton = button(bar, "Play", "Watch the rounds, one after another", () => (playing ? stop() : play()));
  playButton.classList.add("pg-play");
  button(bar, "Step", "One round more", () => {
    stop();
    shown = shown >= s.rounds ? 1 : Math.floor(shown) + 1;
    draw();
  });
  const roundSlider = range(bar, "round", 0, () => s.rounds, 1, () => Math.floor(shown), (v) => {
    shown = v;
    draw();
  }, (v) => `${v} of ${s.rounds}`, {name: "round"});
  lasting(roundSlider);
  button(bar, "Reset", "Everything as it was at first", () => {
    stop();
    trouble = [];
    s = structuredClone(initial);
    remembered = structuredClone(initial.methods);
    shown = s.rounds;
    selected = -1;
    fit();
    if (location.hash.startsWith(address)) history.replaceState(null, "", location.pathname + location.search);
    rebuild();
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

  // more: rarely moved settings, and every number as a field
  html("summary", {textContent: "More settings, and all numbers"}, more);
  more.ontoggle = () => draw();
  const rare = html("div", {className: "pg-sliders"}, more);
  const seldom = (...given) => lasting(range(rare, ...given));
  const menu = (name, title, values) => {
    const row = html("label", {className: "pg-range", title}, rare);
    html("span", {textContent: name}, row);
    const select = html("select", {autocomplete: "off"}, row);
    for (const v of values) html("option", {value: v, textContent: v}, select);
    select.onchange = () => {
      stop();
      change({[name]: select.value});
    };
    lasting(() => (select.value = s[name]));
  };
  menu("problem", "", ["quadratic", "logistic"]);
  menu("topology", "Who averages with whom in DFedAvg, DFedSAM and DFedGAM", TOPOLOGIES);
  seldom("clients n", 2, 8, 1, () => s.clients.length, (n) => {
    const clients = s.clients.slice(0, n);
    while (clients.length < n) clients.push(initial.clients[clients.length] || placed(clients.length));
    change({clients, cohort: s.cohort === null ? null : min(s.cohort, n)});
    rebuild();
  }, String, {name: "clients"});
  seldom("clients per round m", 1, () => s.clients.length, 1, () => s.cohort ?? s.clients.length, (m) => change({cohort: m >= s.clients.length ? null : m}),
    (v) => (v === s.clients.length ? "all" : String(v)), {name: "cohort"});
  seldom("server step η_g", 0.05, 2, 0.05, () => s.server_lr, (v) => change({server_lr: v}), short, {name: "server_lr"});
  seldom("uneven work", 0, 1, 0.05, () => s.uneven, (v) => change({uneven: v}), (v) => (v ? problem(s).K.join(", ") : "none"), {name: "uneven", title: "Later clients take fewer of the K local steps"});
  seldom("rounds", 5, 100, 1, () => s.rounds, (v) => change({rounds: v}), String, {name: "rounds"});
  const table = html("table", {className: "pg-table"}, html("div", {className: "pg-wide"}, more));
  const fields = () => {
    table.replaceChildren();
    const head = html("tr", {}, html("thead", {}, table)), body = html("tbody", {}, table);
    for (const words of ["", "x", "y", "curvature 1", "curvature 2", "angle °"]) {
      if (words) html("th", {textContent: words, scope: "col"}, head);
      else html("td", {}, head);
    }
    const field = (row, words, get, set) => {
      const input = html("input", {type: "text", inputMode: "decimal", autocomplete: "off", ariaLabel: words}, html("td", {}, row));
      input.onchange = () => {
        stop();
        set(input.value.trim() === "" ? "" : Number(input.value.replace(",", ".").replace("−", "-")));
        fit();
        u();
      };
      const u = () => {
        const text = String(get());
        if (document.activeElement !== input && input.value !== text) input.value = text;
      };
      u.field = true;
      lasting(u);
    };
    const line = (textContent) => {
      const row = html("tr", {}, body);
      html("th", {scope: "row", textContent}, row);
      return row;
    };
    const two = (row, words, get, set) => words.forEach((name, k) => field(row, name, () => get()[k], (v) => set(get().map((w, j) => (j === k ? v : w)))));
    s.clients.forEach((_, i) => {
      const row = line(`client ${i + 1}`), who = `of client ${i + 1}`;
      two(row, [`x ${who}`, `y ${who}`], () => s.clients[i].optimum, (optimum) => client(i, {optimum}));
      two(row, [`curvature 1 ${who}`, `curvature 2 ${who}`], () => s.clients[i].curvature, (curvature) => client(i, {curvature}));
      field(row, `angle ${who}`, () => s.clients[i].angle, (angle) => client(i, {angle}));
    });
    two(line("start"), ["x of the start", "y of the start"], () => s.start, (start) => change({start}));
  };
  const rebuild = () => {
    updates = updates.filter((u) => !u.field);
    build();
    fields();
    controls();
    draw();
  };

  // ---- time
  let last = 0;
  const frame = (now) => {
    if (!playing) return;
    if (!root.isConnected) return stop();
    // the first rounds slowly enough to follow each client, the others faster
    const seconds = shown < 2 ? 1.8 : shown < 6 ? 0.6 : 0.18;
    shown = min(s.rounds, shown + min(0.1, (now - last) / 1000) / seconds);
    last = now;
    render();
    if (shown >= s.rounds) return stop();
    playing = requestAnimationFrame(frame);
  };
  const play = () => {
    if (shown >= s.rounds) shown = 0;
    if (still.matches) { // readers who ask for less motion see the rounds one by one
      shown = Math.floor(shown) + 1;
      return draw();
    }
    last = performance.now();
    playButton.textContent = "Pause";
    says.ariaLive = "off";
    playing = requestAnimationFrame(frame);
  };
  const stop = () => {
    if (playing) cancelAnimationFrame(playing);
    playing = 0;
    playButton.textContent = "Play";
    if (says.ariaLive !== "polite") says.ariaLive = "polite";
    if (shown !== Math.floor(shown)) {
      shown = Math.floor(shown);
      draw();
    }
  };

  // ---- the drawing itself
  // An ellipse around a point as two arcs, which grow until they reach the ends of the first axis.
  const oval = (p, a, b, turn) => {
    const t = (turn * PI) / 180, u = a * cos(t), v = -a * sin(t), x = X(p[0]), y = Y(p[1]);
    const arc = `A${px(0.9 * a)} ${px(0.9 * b)} ${px(-turn)} 1 0 `, from = `${px(x - u)} ${px(y - v)}`;
    return `M${from}${arc}${px(x + u)} ${px(y + v)}${arc}${from}Z`;
  };
  const polyline = (path, from, to) => {
    let d = "", before = "";
    for (let t = from; t <= to; t++) {
      const point = `${px(X(path[2 * t]))} ${px(Y(path[2 * t + 1]))}`;
      if (point !== before) d += `${t === from ? "M" : "L"}${point}`; // at rest nothing is added
      before = point;
    }
    return d;
  };
  // Dots as lines of no length with round ends: one element for all of them.
  const dots = (path, from, to) => {
    let d = "", before = "";
    for (let t = from; t <= to; t++) {
      const point = `M${px(X(path[2 * t]))} ${px(Y(path[2 * t + 1]))}h0`;
      if (point !== before) d += point;
      before = point;
    }
    return d;
  };
  let spokenAt = -Infinity, spoken_ = "", telltale = 0, turn = 0;
  // What is drawn is computed anew when the state or the round has changed; a hand that moves waits for no late rest.
  let memo = {};
  const computed = (names, wanted) => {
    const key = `${wanted} ${!dragging}`;
    if (memo.s !== s || memo.key !== key) {
      const P = problem(s), runs = {}, rest = {};
      for (const name of names) {
        runs[name] = run(P, s, name, s.rounds, wanted);
        rest[name] = runs[name].diverged ? null : longRun(P, s, name, runs[name].last, ...(dragging ? [3e3, 1e-5] : []));
      }
      memo = {s, key, P, runs, rest};
    }
    return memo;
  };
  const render = () => {
    const names = Object.keys(s.methods), whole = Math.floor(shown), part = shown - whole;
    // local steps: of the round that runs; else of the first two and the last, where there is room for so many lines
    const lines = s.clients.length * names.length, chosen = part ? [whole] : lines > 12 ? [] : lines > 6 ? [whole - 1] : [0, 1, whole - 1];
    const wanted = [...new Set(chosen)].filter((t) => t >= 0 && (part || t < whole));
    const {P, runs, rest} = computed(names, wanted);
    const away = (x, y) => (P.optimum ? hypot(x - P.optimum[0], y - P.optimum[1]) : null);

    // level lines of F, evenly spaced in the root of its height
    Object.values(put).forEach((p) => p.begin());
    if (P.optimum) {
      if (P.logistic) {
        const F0 = objective(P, ...P.optimum), edge = half * 1.25;
        const top = max(objective(P, edge, edge), objective(P, -edge, -edge), objective(P, edge, -edge), objective(P, -edge, edge)) - F0;
        const levels = Array.from({length: 9}, (_, k) => F0 + top * ((k + 1) / 10) ** 2);
        put.contours("path", {d: levelLines((u, v) => objective(P, (u - W / 2) / unit(), (H / 2 - v) / unit()), levels, ...(dragging ? [26, 24] : []))});
      } else {
        const M = [0, 0, 0];
        for (let i = 0; i < P.n; i++) for (let k = 0; k < 3; k++) M[k] += P.A[3 * i + k] / P.n;
        const [low, high] = eigenvalues(M), t = (Math.atan2(2 * M[1], M[0] - M[2]) / 2) * (180 / PI);
        let d = "";
        for (let k = 1; k <= 9; k++) {
          const r = 0.42 * k * unit() * (half / 3.05);
          d += oval(P.optimum, r * (low / high) ** 0.25, r * (high / low) ** 0.25, t);
        }
        put.contours("path", {d});
      }
    }

    // each client: its optimum, and the level line on which its objective has one height; and the start
    const as = `${selected} ${half} ${!dragging}`, stale = (point, at) => (point.at !== at || point.as !== as) && Object.assign(point, {at, as});
    s.clients.forEach((c, i) => {
      const point = points[i], [l1, l2] = c.curvature, on = selected === i;
      if (stale(point, c)) {
        point.ring = {d: oval(c.optimum, radius(l1) * unit(), radius(l2) * unit(), c.angle), class: `${on ? "pg-on" : ""} ${min(l1, l2) <= 0 ? "pg-open" : ""}`};
        point.g.place(c.optimum, () => `${spoken(c.optimum)}; curvatures ${short(l1)} and ${short(l2)}`);
        point.ends.forEach((e, k) => {
          e.place(axisEnd(c, k), () => `curvature ${short(c.curvature[k])}, angle ${short(c.angle + 90 * k)} degrees`);
          e.style.display = on ? "" : "none";
        });
      }
      put.ellipses("path", point.ring);
    });
    if (stale(points.start, s.start)) points.start.place(s.start, () => spoken(s.start));
    if (names.some((name) => METHODS[name].gossip)) { // who averages with whom
      let d = "";
      for (let i = 0; i < P.n; i++) for (let k = 0; k < i; k++) if (P.W[P.n * i + k]) d += `M${at(s.clients[i].optimum)}L${at(s.clients[k].optimum)}`;
      put.ellipses("path", {d, class: "pg-graph"});
    }

    // the server's path, the clients' local steps of some rounds, and the method's fixed point
    const told_ = [], busy = s.clients.map((c) => c.optimum).concat([s.start]), fixedOnes = [];
    for (const name of names) {
      const {path, traces, diverged} = runs[name], look = looks[name], count = path.length / 2 - 1, end = min(whole, count);
      const style = `--k:var(--${name})`;
      let walks = "", steps = "", tips = "";
      for (const t of wanted) {
        for (const one of traces[t] || []) {
          if (!one || lost(one.slice(-2))) continue;
          const K = one.length / 2 - 1, upto = part ? min(K, Math.ceil((part / 0.72) * K)) : K;
          walks += polyline(one, 0, upto);
          if (K <= 20) steps += dots(one, 1, upto);
          if (upto === K) tips += dots(one, K, K);
        }
      }
      put.traces("path", {d: walks, style});
      put.traces("path", {d: steps, style, class: "pg-dots"});
      put.traces("path", {d: tips, style, class: "pg-tips"});
      let d = polyline(path, 0, end), now = [path[2 * end], path[2 * end + 1]];
      if (part > 0.72 && whole < count) { // the server moves to the mean of what the clients found
        const q = (part - 0.72) / 0.28;
        now = now.map((v, k) => v + q * (path[2 * whole + 2 + k] - v));
        d += `L${at(now)}`;
      }
      put.paths("path", {d, style, "stroke-dasharray": look.dash || "none"});
      const rounds = dots(path, 1, end);
      put.paths("path", {d: rounds, style, class: "pg-tips"});
      put.paths("path", {d: rounds, class: "pg-holes"});
      put.now("path", {d: marker(look.marker, 6, X(now[0]), Y(now[1])), style});
      for (let t = 0; t <= end; t += 2) busy.push([path[2 * t], path[2 * t + 1]]);
      const fixed = rest[name]?.at, bias = fixed && P.optimum ? away(...fixed) : null, hovers = rest[name]?.hovers ? rest[name].away : null;
      if (bias > 0.04 * (half / 3.05)) fixedOnes.push({name, fixed, bias, style});
      const left = diverged && whole >= diverged ? diverged : 0;
      told_.push(told(name, away(path[2 * end], path[2 * end + 1]), bias, left, whole, hovers, `${s.cohort} of ${s.clients.length} clients`));
    }
    for (const {fixed, style} of fixedOnes) {
      put.fixed("path", {d: `M${at(fixed)}L${at(P.optimum)}`, style, class: "pg-gap"});
      put.fixed("circle", {cx: px(X(fixed[0])), cy: px(Y(fixed[1])), r: 10.5, style});
      busy.push(fixed);
    }
    const word = (text, [x, y], gap) => { // where it is emptiest: right, left, above or below
      const u = unit(), wide = text.length * 6.6, spots = [[gap, 4, "start"], [-gap, 4, "end"], [0, -gap, "middle"], [0, gap + 9, "middle"]];
      let best = null;
      for (const [dx, dy, anchor] of spots) {
        const cx = X(x) + dx + (anchor === "start" ? wide / 2 : anchor === "end" ? -wide / 2 : 0), cy = Y(y) + dy - 4;
        let room = min(0, cx - wide / 2 - 4, W - 4 - cx - wide / 2, cy - 10, H - 10 - cy) * 50;
        for (const [bx, by] of busy) {
          const ex = max(0, abs(X(bx) - cx) - wide / 2), ey = max(0, abs(Y(by) - cy) - 7);
          room -= max(0, 16 - hypot(ex, ey));
        }
        if (!best || room > best.room + 1e-9) best = {room, cx, cy, dx, dy, anchor};
      }
      put.words("text", {x: px(X(x) + best.dx), y: px(Y(y) + best.dy), "text-anchor": best.anchor}, text);
      for (let q = -1; q <= 1; q++) busy.push([(best.cx + (q * wide) / 2 - W / 2) / u, (H / 2 - best.cy) / u]);
    };
    if (P.optimum) {
      put.star("path", {d: marker("*", 10, X(P.optimum[0]), Y(P.optimum[1]))});
      busy.push(P.optimum);
      word("optimum", P.optimum, 17);
    }
    word("start", s.start, 15);
    if (fixedOnes.length && fixedOnes.length < 3) fixedOnes.forEach(({name, fixed}) => word(`${name} stops here`, fixed, 16));

    Object.values(put).forEach((p) => p.end());
    // under a moving hand chart and numbers take turns: each fifteen times a second is enough
    turn += 1;
    if (!dragging || turn % 4 === 1) drawChart(P, runs, whole, away);
    if (!dragging || turn % 4 === 3) updates.forEach((u) => (u.field && !more.open) || u());

    const wrong = few([...trouble, ...warnings(P, s)]);
    notice.hidden = !wrong;
    if (notice.textContent !== wrong) notice.textContent = wrong;
    const text = told_.filter(Boolean).join(" ") || (names.length ? "" : "Choose a method.");
    const tick = performance.now(); // words flow anew, which costs more than lines: ten times a second is enough
    const setting = `${P.n} clients, K = ${s.local_steps}, η = ${short(s.lr)}${s.cohort ? `, ${s.cohort} clients per round` : ""}.`;
    const alt = `${text} The plane of two parameters; ${setting}`;
    if (alt !== spoken_) {
      if (tick - spokenAt > 100) {
        says.textContent = text;
        plane.setAttribute("aria-label", (spoken_ = alt));
        spokenAt = tick;
      } else if (!telltale) {
        telltale = setTimeout(() => {
          telltale = 0;
          draw();
        }, 110);
      }
    }
    root.dataset.round = shown;
  };

  const cost = (P, name, t) => {
    const look = looks[name], r = cohortOf(P, s, name, t), K = stepsOf(P, s, name, t);
    if (axis === "bytes") return 8 * 2 * r.length * (look.down + look.up);
    return r.reduce((sum, i) => sum + K[i] * look.gradients + look.full, 0);
  };
  const onChart = pen(chart);
  const drawChart = (P, runs, whole, away) => {
    const {w, h, left, right, top, bottom} = CHART, names = Object.keys(runs), curves = {};
    let furthest = 1, high = -Infinity, low = Infinity;
    for (const name of names) {
      const {path} = runs[name], points = [];
      let at = 0;
      for (let t = 0; 2 * t < path.length; t++) {
        if (t) at += axis === "rounds" ? 1 : cost(P, name, t - 1);
        const d = away(path[2 * t], path[2 * t + 1]);
        if (d === null) break;
        points.push([at, Math.log10(max(d, 1e-8))]);
        high = max(high, points.at(-1)[1]);
        low = min(low, points.at(-1)[1]);
      }
      curves[name] = points;
      furthest = max(furthest, at);
    }
    const put = onChart;
    put.begin();
    if (!P.optimum || !names.length) {
      put("text", {x: w / 2, y: h / 2, "text-anchor": "middle"}, names.length ? "no optimum to measure from" : "no method chosen");
      put.end();
      chart.setAttribute("aria-label", "An empty chart.");
      return;
    }
    const ceiling = min(6, Math.ceil(high - 0.05)), floor = min(ceiling - 2, max(-8, Math.floor(low)));
    const x = (v) => left + (v / furthest) * (w - left - right), y = (v) => top + ((ceiling - min(v, ceiling)) / (ceiling - floor)) * (h - top - bottom);
    const every = Math.ceil((ceiling - floor) / 4);
    for (let d = ceiling; d >= floor; d -= every) {
      put("path", {d: `M${left} ${px(y(d))}H${w - right}`, class: "pg-grid"});
      put("text", {x: left - 6, y: px(y(d) + 4), "text-anchor": "end"}, d === 0 ? "1" : d === 1 ? "10" : `10${superscript(d)}`);
    }
    const big = axis === "bytes" && furthest >= 2000;
    put("text", {x: left, y: h - 9}, "0");
    put("text", {x: w - right, y: h - 9, "text-anchor": "end"}, `${big ? `${short(furthest / 1000)} kB` : `${short(furthest)} ${axis}`}`);
    const ends = [];
    for (const name of names) {
      const points = curves[name], look = looks[name], style = `--k:var(--${name})`, upto = min(whole, points.length - 1);
      const line = (to) => points.slice(0, to + 1).map(([u, v], k) => `${k ? "L" : "M"}${px(x(u))} ${px(y(v))}`).join("");
      if (upto < points.length - 1) put("path", {d: line(points.length - 1), style, class: "pg-curve pg-ghost"});
      put("path", {d: line(upto), style, class: "pg-curve", "stroke-dasharray": look.dash || "none"});
      if (upto >= 0) put("path", {d: marker(look.marker, 4.5, x(points[upto][0]), y(points[upto][1])), style, class: "pg-end"});
      ends.push(`${name} ${short(10 ** points[max(0, upto)][1])}`);
    }
    put.end();
    chart.setAttribute("aria-label", `Distance to the optimum after round ${whole}, against ${axis}: ${listed(ends)}.`);
  };

  rebuild();
  render();
  const follow = () => {
    if (!fromAddress()) return;
    shown = s.rounds;
    fit();
    rebuild();
  };
  addEventListener("hashchange", follow);
  if (linked) root.scrollIntoView({block: "center"});
  return {
    get: () => structuredClone(s),
    set: (state) => {
      const n = s.clients.length, methods = Object.keys(s.methods).join();
      stop();
      change(state, true);
      fit();
      if (n !== s.clients.length || methods !== Object.keys(s.methods).join()) rebuild();
    },
    render,
    destroy: () => {
      stop();
      removeEventListener("hashchange", follow);
    },
  };
}

const widget = widgetOf(mount, "fc-pg");
export default widget;

mountAll(mount, "figure.fc-pg:not(.fc-ready, .pg-net, .pg-masks)");
