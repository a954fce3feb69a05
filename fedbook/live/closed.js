// Explorers that the page computes: the lines of a frame's picture are drawn anew for any value, by a formula.
var fcClosed = (() => {
  const range = (n, f) => Array.from({length: n}, (_, k) => f(k));
  const spaced = (low, high, n) => range(n, (k) => low * (high / low) ** (k / (n - 1))); // evenly on a log scale
  const level = (y) => [[0, 1], [y, y]]; // a line across the axes
  const round = (v, digits) => Math.round(v * 10 ** digits) / 10 ** digits;
  const below = (x) => { // the normal distribution
    if (Math.abs(x) > 9) return x > 0 ? 1 : 0;
    let term = x, sum = x;
    for (let k = 1; Math.abs(term) > 1e-17 * Math.abs(sum); k++) sum += term *= x * x / (2 * k + 1);
    return 0.5 + sum * Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI);
  };
  const clinics = (f) => f(0) + f(1);

  // name of the chapter's function: (its parameters, constants) => its lines [x, y] in order, and its numbers.
  const formulas = {
    bias: ({second_curvature, lr}) => {
      const a = [1, second_curvature], b = [1, -1], best = clinics((i) => a[i] * b[i]) / clinics((i) => a[i]);
      const left = (i, K) => (1 - lr * a[i]) ** K;
      const limit = (K) => clinics((i) => (1 - left(i, K)) * b[i]) / clinics((i) => 1 - left(i, K));
      const run = (K) => {
        let x = 1.5;
        for (let t = Math.ceil(Math.log(1e-8) / Math.log(clinics((i) => left(i, K)) / 2)); t > 0; t--)
          x = clinics((i) => range(K, () => 0).reduce((y) => y - lr * a[i] * (y - b[i]), x)) / 2;
        return x;
      };
      const Ks = [...new Set(spaced(1, 300, 60).map(Math.floor))], some = [1, 5, 20, 100], dots = some.map(run);
      const slope = -lr / 2 * clinics((i) => a[i] ** 2 * (b[i] - best)) / clinics((i) => a[i]);
      const numbers = {optimum: best, "bias at K = 5": round(dots[1] - best, 6), "first order": round(4 * slope, 6)};
      return {
        lines: [[Ks, Ks.map(limit)], [Ks, Ks.map((K) => best + slope * (K - 1))], [some, dots], level(best)],
        numbers: {...numbers, "bias at K = 100": round(dots[3] - best, 6)},
      };
    },
    learning: ({K}, graphs) => {
      const phi = 1 - 0.9 ** K, left = (rate) => rate * phi / (1 - rate * (1 - phi)), rates = range(200, (k) => k / 199);
      const sum = (all) => all.reduce((total, v) => total + v, 0);
      const points = Object.values(graphs).map(([values, squares]) => {
        const [, second] = values.map(Math.abs).sort((a, b) => b - a); // the largest, 1, is that of the mean
        return [[second], [Math.sqrt(sum(values.map((v, j) => left(v) ** 2 * squares[j])) / sum(squares))]];
      });
      const said = Object.keys(graphs).map((name, k) => [name, round(points[k][1][0], 4)]);
      return {lines: [[rates, rates.map(left)], ...points], numbers: Object.fromEntries(said)};
    },
    price: ({K}) => {
      const a = [1, 3], b = [1, -1];
      const leash = (mu) => {
        const g = (i) => (1 - (1 - 0.1 * (a[i] + mu)) ** K) * a[i] / (a[i] + mu);
        return [clinics((i) => g(i) * b[i]) / clinics(g) + 0.5, 1 - clinics(g) / 2];
      };
      const mus = spaced(0.01, 7, 60), rounds = mus.map((mu) => Math.log(100) / -Math.log(leash(mu)[1]));
      return {
        lines: [[mus, mus.map((mu) => leash(mu)[0])], level(leash(0)[0]), [mus, rounds]],
        numbers: Object.fromEntries([0, 1, 7].map((mu) => [`bias at μ = ${mu}`, round(leash(mu)[0], 4)])),
      };
    },
    pull: ({alpha_K, a}) => {
      const walk = (alpha) => {
        const sum = range(16, (j) => (1 - 0.1 * (a + alpha)) ** j).reduce((s, v) => s + v, 0), path = [2, 2];
        const middle = 1 - 0.1 * a * sum + alpha * sum;
        for (let t = 0; t < 60; t++) path.push(middle * path.at(-1) - alpha * sum * path.at(-2));
        return {path: path.slice(1), strength: alpha * sum, middle};
      };
      const avg = walk(0), up = walk(alpha_K / 16), square = up.middle ** 2 / 4 - up.strength;
      // The larger root of r² - middle r + strength: a pair of complex roots has the product as square.
      const growth = square < 0 ? Math.sqrt(up.strength) : Math.abs(up.middle) / 2 + Math.sqrt(square);
      return {
        lines: [avg, up].map(({path}) => [range(61, (t) => t + 1), path.map((v) => Math.max(-9, Math.min(9, v)))]),
        numbers: {"α Ψ": up.strength, "growth per round": growth, stable: growth < 1 ? "yes" : "no",
          "FedAvg after 60 rounds": round(avg.path[60], 6), "FedUp after 60 rounds": round(up.path[60], 6)},
      };
    },
    scanners: ({brightness, contrast, ill, statistics}) => {
      const share = [0.5, ill], scale = [1, contrast], shift = [0, brightness], line = range(401, (j) => -4 + j / 50);
      const means = share.map((p, i) => scale[i] * (2 * p - 1) + shift[i]);
      const variances = share.map((p, i) => scale[i] ** 2 * (1.16 - (2 * p - 1) ** 2));
      const own = (all, i) => statistics === "own" ? all[i] : (all[0] + all[1]) / 2;
      const width = (i) => 0.4 * scale[i] / Math.sqrt(own(variances, i));
      const from = (k, i, v) => // in standard deviations from the middle of the healthy (0) or the ill (1)
        (v - (scale[i] * (2 * k - 1) + shift[i] - own(means, i)) / Math.sqrt(own(variances, i))) / width(i);
      const weight = (k, i) => k ? share[i] : 1 - share[i], bell = (x) => Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI);
      const right = share.map((p, i) => line.map((v) => 100 * ((1 - p) * below(from(0, i, v)) + p * (1 - below(from(1, i, v))))));
      const sums = line.map((v, j) => right[0][j] + right[1][j]), best = sums.indexOf(Math.max(...sums));
      const lines = share.map((p, i) => {
        const heights = [0, 1].map((k) => line.map((v) => weight(k, i) * bell(from(k, i, v)) / width(i)));
        const area = (y) => [[-4, ...line, 4, -4], [0, ...y, 0, 0]];
        return [...heights.map((y) => [line, y]), [[line[best], line[best]], [0, 1]], ...heights.map(area)];
      });
      const said = right.map((all, i) => [`right in hospital ${i + 1}`, `${all[best].toFixed(1)} %`]);
      return {lines: lines.flat(), numbers: Object.fromEntries(said)};
    },
    servers: ({momentum, K}) => {
      const flat = [0.06, 0.02], steep = [3, 1], own = [[2, 1], [0.5, -0.5]], A = [flat, steep];
      const best = A.map((a, p) => clinics((i) => a[i] * own[p][i]) / clinics((i) => a[i]));
      const update = (x, p) => clinics((i) => (own[p][i] - x) * (1 - (1 - 0.2 * A[p][i]) ** K)) / 2;
      const heavy = (beta) => () => {
        let v = 0;
        return (delta) => (v = beta * v + delta);
      };
      const adam = () => {
        let m = 0, v = 1e-6;
        return (delta) => {
          [m, v] = [0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta ** 2];
          return 0.1 * m / (Math.sqrt(v) + 1e-3);
        };
      };
      const paths = [heavy(0), heavy(momentum), adam].map((server) => [-2, 1].map((x, p) => {
        const move = server(), path = [x];
        for (let t = 0; t < 60; t++) path.push(x += move(update(x, p)));
        return path;
      }));
      const far = paths.map(([x, y]) => x.map((v, t) => Math.hypot(v - best[0], y[t] - best[1])));
      const said = ["FedAvg", "FedAvgM", "FedAdam"].map((name, k) => [`${name}, distance after 60 rounds`, round(far[k][60], 3)]);
      const rounds = range(61, (t) => t);
      return {lines: [...paths, best.map((v) => [v]), ...far.map((f) => [rounds, f])], numbers: Object.fromEntries(said)};
    },
    pulled: ({pull, differ, images}, {slips}) => {
      const n = slips.length, U = 4 / images, mean = (v) => v.reduce((s, x) => s + x, 0) / n;
      const error = (w) => (1 - w) ** 2 * differ ** 2 + w ** 2 * (1 - 1 / n) * U + U / n;
      const wanted = [Math.cos, Math.sin].map((f) => range(n, (k) => differ * f(2 * Math.PI * k / n)));
      const said = wanted.map((v, p) => v.map((x, k) => x + Math.sqrt(U / 2) * slips[k][p])), one = said.map(mean);
      const own = said.map((v, p) => v.map((x) => (x + pull * one[p]) / (1 + pull)));
      const pulls = spaced(0.01, 100, 81), held = error(1 / (1 + pull));
      return {
        lines: [...range(n, (k) => [0, 1].map((p) => [own[p][k], wanted[p][k]])), wanted, said, own, one.map((v) => [v]),
          [pulls, pulls.map((v) => error(1 / (1 + v)))], [[pull], [held]]],
        numbers: {"every client alone": error(1), "with this pull": held, "one model for all": error(0)},
      };
    },
    steps_of_W: ({gamma, best}) => {
      const path = (held) => range(20, () => 0).reduce((W) => [...W, held(W.at(-1) - gamma * (W.at(-1) - best))], [1]);
      const free = path((v) => v), clipped = path((v) => Math.min(Math.max(v, 0), 1)), steps = range(21, (t) => t);
      return {
        lines: [level(best), [steps, free], [steps, clipped]],
        numbers: {"unclipped: last W": free[20], "clipped: last W": clipped[20]},
      };
    },
  };

  // As Python prints: four significant digits.
  const printed = (v) => {
    if (typeof v === "string") return v;
    const short = Number(v.toPrecision(4)), [mantissa, power] = short.toExponential().split("e");
    return +power >= -4 && +power < 6 ? String(short) : `${mantissa}e${power[0]}${power.slice(1).padStart(2, "0")}`;
  };
  const redrawn = (uri, scales, lines, every) => {
    const page = new DOMParser().parseFromString(decodeURIComponent(uri.slice(uri.indexOf(",") + 1)), "image/svg+xml");
    lines.forEach(([xs, ys], k) => {
      const [a, b, c, d, logX, logY] = scales[k], [first, step] = every[k], group = page.getElementById(`fc-${k}`);
      const place = (from, slope, v) => Math.max(-9999, Math.min(9999, from + slope * v)).toFixed(2);
      const points = xs.map((x, j) => [place(a, b, logX ? Math.log10(x) : x), place(c, d, logY ? Math.log10(ys[j]) : ys[j])]);
      group.querySelector(":scope > path")?.setAttribute("d", "M" + points.map((p) => p.join(" ")).join("L"));
      const mark = group.querySelector("use"), marked = points.filter((_, j) => j >= first && (j - first) % step === 0);
      mark?.parentNode.replaceChildren(...marked.map(([x, y]) => {
        const copy = mark.cloneNode();
        copy.setAttribute("x", x);
        copy.setAttribute("y", y);
        return copy;
      }));
    });
    return "data:image/svg+xml," + encodeURIComponent(new XMLSerializer().serializeToString(page));
  };
  const closed = ({names, frames, closed: {formula, constants, lines: called, every, layouts}}) => (labels, pictures) => {
    const given = Object.fromEntries(names.map((name, i) => [name, isNaN(labels[i]) ? labels[i] : +labels[i]]));
    const {lines, numbers} = formulas[formula](given, constants), about = frames[0].alt.split(". ")[1];
    const pairs = Object.entries(numbers).map(([name, v]) => [name, printed(v)]), list = (all) => all.map((p) => p.join(" ")).join(", ");
    const said = (y) => printed(round(y, 12)), point = ([x, y], j) => `${said(y.at(j))} at ${printed(x.at(j))}`;
    const ends = lines.map((line, k) => called[k] && line[0].length > 2 && `${called[k]}: from ${point(line, 0)} ` +
      `to ${point(line, -1)}, lowest ${said(Math.min(...line[1]))}, highest ${said(Math.max(...line[1]))}.`);
    return {
      alt: [`At ${list(names.map((name, i) => [name.replaceAll("_", " "), labels[i]]))}. ${about}. Numbers: ${list(pairs)}.`, ...ends.filter(Boolean)].join(" "),
      numbers: pairs,
      uris: pictures?.map((uri, k) => redrawn(uri, layouts[k], lines, every)),
    };
  };
  return Object.assign(closed, {formulas, printed});
})();
