// Random numbers, tables of forms, the witness, and MMD² with its standard error.
(function (root) {
  "use strict";
  const X = root.privfairExplorer;

  // ---- random numbers: a hash of (seed, stream, counter), so that every draw can be had again --------------------

  function mixed(h) {
    h = Math.imul(h ^ (h >>> 16), 0x7feb352d);
    h = Math.imul(h ^ (h >>> 15), 0x846ca68b);
    return (h ^ (h >>> 16)) >>> 0;
  }
  // The counter-th number of a stream, in (0, 1), with 52 random bits.
  function uniform(seed, stream, counter) {
    const key = mixed(Math.imul(seed | 0, 0x9e3779b1) ^ mixed(stream + 0x632be5ab));
    const high = mixed(key ^ mixed(counter * 2 + 1)), low = mixed(mixed(key + 0x5bd1e995) ^ mixed(counter * 2 + 2));
    return (high * 1048576 + (low >>> 12) + 0.5) / 4503599627370496;
  }
  function normals(count, seed, stream) {
    const values = new Float64Array(count);
    for (let i = 0; i < count; i += 2) {
      const radius = Math.sqrt(-2 * Math.log(uniform(seed, stream, i))), angle = 2 * Math.PI * uniform(seed, stream, i + 1);
      values[i] = radius * Math.cos(angle);
      if (i + 1 < count) values[i + 1] = radius * Math.sin(angle);
    }
    return values;
  }
  // Unit noise: N(0, 1), or Laplace(1) by its inverse distribution function.
  function unitNoise(kind, count, seed, stream) {
    if (kind === "none") return new Float64Array(count);
    if (kind === "gaussian") return normals(count, seed, stream);
    return Float64Array.from({ length: count }, (_, i) => {
      const u = uniform(seed, stream, i) - 0.5;
      return -Math.sign(u) * Math.log1p(-2 * Math.abs(u));
    });
  }
  function withNoise(scores, noise, seed, stream) {
    return unitNoise(noise.kind, scores.length, seed, stream).map((e, i) => scores[i] + noise.scale * e);
  }

  // Scores in (0, 1) of two groups, alike at difference 0: normal draws through a logistic curve.
  function exampleGroups(shape, difference, spread, count, seed) {
    const group = which => normals(count, seed, 1 + which).map((z, i) => {
      const sign = which ? 1 : -1;
      let logit = spread * z;
      if (shape === "shifted") logit += 1.5 * sign * difference;
      if (shape === "spread") logit *= which ? 1 + 1.5 * difference : 1 - 0.6 * difference;
      if (shape === "peaks" && which) logit = logit * (1 - 0.5 * difference) + 2.2 * difference * (i % 2 ? 1 : -1);
      return 1 / (1 + Math.exp(-logit));
    });
    return [group(0), group(1)];
  }

  // ---- a form as piecewise polynomials: fine near 0, coarser in proportion further out ---------------------------

  const DEGREE = 5, SIZE = DEGREE + 1, INNER = 128, OUTER = 64;
  const POINTS = Array.from({ length: SIZE }, (_, i) => -Math.cos(Math.PI * (i + 0.5) / SIZE));
  const TO_POWERS = inverseVandermonde(POINTS);

  function inverseVandermonde(points) {
    const rows = points.map((x, i) => [...points.map((_, k) => x ** k), ...points.map((_, j) => (i === j ? 1 : 0))]);
    const n = points.length;
    for (let c = 0; c < n; c++) {
      let best = c;
      for (let r = c; r < n; r++) if (Math.abs(rows[r][c]) > Math.abs(rows[best][c])) best = r;
      [rows[c], rows[best]] = [rows[best], rows[c]];
      const pivot = rows[c][c];
      for (let k = 0; k < 2 * n; k++) rows[c][k] /= pivot;
      for (let r = 0; r < n; r++) {
        const factor = rows[r][c];
        if (r !== c) for (let k = 0; k < 2 * n; k++) rows[r][k] -= factor * rows[c][k];
      }
    }
    return rows.map(row => row.slice(n));
  }

  // A fast function of r ≥ 0 that follows the form to about 1e-9 of its height; beyond `reach` the form itself.
  function table(form, width, reach) {
    const zone = 16 * width, fine = width / 8;
    const doublings = Math.max(0, Math.ceil(Math.log2(reach / zone)));
    const cells = INNER + OUTER * doublings, c = new Float64Array(cells * SIZE), last = zone * 2 ** doublings;
    const values = new Float64Array(SIZE), source = form.quick ? form.quick(last) : form;
    for (let cell = 0; cell < cells; cell++) {
      const level = cell < INNER ? -1 : Math.floor((cell - INNER) / OUTER);
      const size = level < 0 ? fine : zone * 2 ** level / OUTER;
      const start = level < 0 ? cell * fine : zone * 2 ** level + ((cell - INNER) % OUTER) * size;
      for (let i = 0; i < SIZE; i++) values[i] = source(start + 0.5 * size * (POINTS[i] + 1));
      for (let k = 0; k < SIZE; k++) {
        let sum = 0;
        for (let i = 0; i < SIZE; i++) sum += TO_POWERS[k][i] * values[i];
        c[cell * SIZE + k] = sum;
      }
    }
    const perFine = 1 / fine;
    return r => {
      let cell, t;
      if (r < zone) {
        t = r * perFine;
        cell = t | 0;
        t = 2 * (t - cell) - 1;
      } else if (r < last) {
        let low = zone, base = INNER;
        while (r >= 2 * low) { low *= 2; base += OUTER; }
        t = (r - low) / low * OUTER;
        const step = Math.min(t | 0, OUTER - 1);
        cell = base + step;
        t = 2 * (t - step) - 1;
      } else {
        return form(r);
      }
      const at = cell * SIZE;
      return c[at] + t * (c[at + 1] + t * (c[at + 2] + t * (c[at + 3] + t * (c[at + 4] + t * c[at + 5]))));
    };
  }

  // ---- witness and MMD² ------------------------------------------------------------------------------------------

  // C(z) = mean v(z − x) − mean v(z − y) and its standard error, at each z.
  function witness(v, x, y, points) {
    const value = [], error = [];
    for (const z of points) {
      const [m0, s0] = meanAndSquareError(v, x, z), [m1, s1] = meanAndSquareError(v, y, z);
      value.push(m0 - m1);
      error.push(Math.sqrt(s0 + s1));
    }
    return { value, error };
  }
  function meanAndSquareError(v, sample, z) {
    let sum = 0, squares = 0;
    const n = sample.length;
    for (let i = 0; i < n; i++) {
      const value = v(Math.abs(z - sample[i]));
      sum += value;
      squares += value * value;
    }
    return [sum / n, Math.max(0, squares / n - (sum / n) ** 2) / (n - 1)];
  }

  // Sums over pairs of different records: Σ_{j≠i} v(x_i − x_j) for each i.
  function ownSums(v, x) {
    const sums = new Float64Array(x.length);
    for (let i = 0; i < x.length; i++) {
      let sum = 0;
      const at = x[i];
      for (let j = i + 1; j < x.length; j++) {
        const value = v(Math.abs(at - x[j]));
        sum += value;
        sums[j] += value;
      }
      sums[i] += sum;
    }
    return sums;
  }
  function crossSums(v, x, y) {
    const ofX = new Float64Array(x.length), ofY = new Float64Array(y.length);
    for (let i = 0; i < x.length; i++) {
      let sum = 0;
      const at = x[i];
      for (let j = 0; j < y.length; j++) {
        const value = v(Math.abs(at - y[j]));
        sum += value;
        ofY[j] += value;
      }
      ofX[i] = sum;
    }
    return [ofX, ofY];
  }
  const total = values => values.reduce((sum, value) => sum + value, 0);

  // The U-statistic of MMD² and its jackknife standard error over the drawing of the records.
  function mmd2(v, x, y) {
    const ownX = ownSums(v, x), ownY = ownSums(v, y), [crossX, crossY] = crossSums(v, x, y);
    const n = x.length, m = y.length;
    const value = total(ownX) / (n * (n - 1)) + total(ownY) / (m * (m - 1)) - 2 * total(crossX) / (n * m);
    return { value, standardError: Math.sqrt(jackknife(ownX, crossX, m) + jackknife(ownY, crossY, n)) };
  }
  function jackknife(own, cross, others) {
    const n = own.length, allOwn = total(own), allCross = total(cross);
    if (n < 3) return NaN;
    const left = own.map((sum, i) =>
      (allOwn - 2 * sum) / ((n - 1) * (n - 2)) - 2 * (allCross - cross[i]) / ((n - 1) * others));
    const mean = total(left) / n;
    return (n - 1) / n * left.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  }

  // How many times more scores the deconvolved kernel needs for the same error of C′: see `variance_factor` in Python.
  function varianceFactor(slope, sharpSlope, nodes, weights, x, y) {
    const scores = Float64Array.from([...x, ...y]), n = scores.length;
    const low = Math.min(...scores), high = Math.max(...scores);
    const odd = (f, d) => (d < 0 ? -f(-d) : d > 0 ? f(d) : 0);
    let noisy = 0, clean = 0;
    for (let k = 0; k < 21; k++) {
      const z = low + (high - low) * k / 20;
      let first = 0, second = 0, sum = 0, squares = 0;
      for (let i = 0; i < n; i++) {
        const d = z - scores[i], plain = odd(slope, d);
        for (let j = 0; j < nodes.length; j++) {
          const value = odd(sharpSlope, d - nodes[j]);
          first += weights[j] * value;
          second += weights[j] * value * value;
        }
        sum += plain;
        squares += plain * plain;
      }
      noisy += second / n - (first / n) ** 2;
      clean += squares / n - (sum / n) ** 2;
    }
    return clean > 0 ? noisy / clean : Infinity;
  }

  Object.assign(X, { uniform, normals, unitNoise, withNoise, exampleGroups, table, witness, mmd2, varianceFactor });
})(typeof window === "undefined" ? globalThis : window);
