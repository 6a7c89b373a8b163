// What noise on a score in [0, 1] costs in ε: one release exactly, many rounds with sampling by a Rényi bound.
(function (root) {
  "use strict";
  const X = root.privfairExplorer, LEGENDRE = X.gaussLegendre(20);

  // δ(ε) of one Gaussian release, h = 1/σ: φ(t)·∫_t^{t+h} (1 − s·M(s)) ds with t = ε/h − h/2 and Mills' ratio M.
  // This is Balle and Wang's Φ(h/2 − ε/h) − e^ε·Φ(−h/2 − ε/h) without its cancellation.
  function gaussianDelta(epsilon, sigma) {
    const shift = 1 / sigma, start = epsilon * sigma - shift / 2;
    const density = Math.exp(-0.5 * start * start) / Math.sqrt(2 * Math.PI);
    const mills = s => Math.sqrt(Math.PI / 2) * X.erfcx(s / Math.SQRT2);
    if (shift <= 1) {
      let sum = 0;
      LEGENDRE.nodes.forEach((node, i) => {
        const s = start + shift * node;
        sum += LEGENDRE.weights[i] * (1 - s * mills(s));
      });
      return density * shift * sum;
    }
    const first = start > 0 ? density * mills(start) : X.normalCdf(-start);
    const upper = start + shift; // e^ε·Φ(−upper), in logarithms where Mills' ratio would overflow
    return Math.max(0, first - (upper > 0 ? density * mills(upper) : Math.exp(epsilon) * X.normalCdf(-upper)));
  }

  // Where a decreasing function falls below a level: bisection in the logarithm.
  function crossing(f, level, low, high) {
    if (f(low) <= level) return low;
    let a = Math.log(low), b = Math.log(high);
    for (let i = 0; i < 100; i++) {
      const middle = 0.5 * (a + b);
      if (f(Math.exp(middle)) > level) a = middle; else b = middle;
    }
    return Math.exp(b);
  }

  // ε of one release of one score, sampled with probability `rate`: rate·H(ln(1 + (e^ε − 1)/rate)) = δ.
  function oneRelease(noise, delta, rate = 1) {
    if (noise.kind === "none") return Infinity;
    const inner = noise.kind === "laplace" ? 1 / noise.scale
      : delta >= rate ? 0 : crossing(e => gaussianDelta(e, noise.scale), delta / rate, 1e-9, 1e7);
    return inner > 30 ? inner + Math.log(rate + (1 - rate) * Math.exp(-inner)) : Math.log1p(rate * Math.expm1(inner));
  }

  // The scale at which one release of one score costs ε.
  function scaleFor(kind, epsilon, delta) {
    return kind === "laplace" ? 1 / epsilon : crossing(sigma => gaussianDelta(epsilon, sigma), delta, 1e-4, 1e7);
  }

  // ln E[(shifted/unshifted density)^k] under the unshifted law.
  function logMoment(noise, k) {
    if (noise.kind === "gaussian") return (k * k - k) / (2 * noise.scale ** 2);
    const e = 1 / noise.scale; // k/(2k−1)·e^{(k−1)/b} + (k−1)/(2k−1)·e^{−k/b}
    return k < 2 ? 0 : (k - 1) * e + Math.log((k + (k - 1) * Math.exp(-(2 * k - 1) * e)) / (2 * k - 1));
  }

  const ORDERS = [...Array.from({ length: 63 }, (_, i) => i + 2), 80, 96, 128, 192, 256, 384, 512];
  const LOW_ORDERS = [1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8]; // little noise: these give the least ε
  const LOG_FACTORIAL = [0];
  for (let k = 1; k <= 512; k++) LOG_FACTORIAL.push(LOG_FACTORIAL[k - 1] + Math.log(k));

  // An upper bound of ε of `rounds` Poisson-sampled releases: Rényi divergences of the sampled noise from the noise,
  // added up and converted at δ. Whole orders are exact by the binomial theorem, those below 2 by quadrature.
  function manyRounds(noise, delta, rate, rounds) {
    if (noise.kind === "none") return Infinity;
    let best = noise.kind === "laplace" ? rounds * oneRelease(noise, 0, rate) : Infinity;
    if (rounds === 1) best = Math.min(best, oneRelease(noise, delta, rate));
    const consider = (order, moment) => {
      const cost = rounds * Math.max(0, moment) / (order - 1);
      best = Math.min(best, cost + Math.log1p(-1 / order) - (Math.log(delta) + Math.log(order)) / (order - 1));
    };
    const moments = Array.from({ length: 513 }, (_, k) => logMoment(noise, k));
    for (const order of ORDERS) consider(order, wholeMoment(moments, rate, order));
    for (const order of LOW_ORDERS) {
      const moment = lowMoment(noise, rate, order);
      if (moment > 1e-3) consider(order, moment + 1e-9); // below, rounding would count
    }
    return Math.max(best, 0);
  }

  // ln E(1 − q + q·ratio)^α for a whole order.
  function wholeMoment(moments, rate, order) {
    if (rate === 1) return moments[order];
    const taken = Math.log(rate), left = Math.log1p(-rate), logs = new Float64Array(order + 1);
    let top = -Infinity, sum = 0;
    for (let k = 0; k <= order; k++) {
      const choose = LOG_FACTORIAL[order] - LOG_FACTORIAL[k] - LOG_FACTORIAL[order - k];
      logs[k] = choose + k * taken + (order - k) * left + moments[k];
      top = Math.max(top, logs[k]);
    }
    for (let k = 0; k <= order; k++) sum += Math.exp(logs[k] - top);
    return top + Math.log(sum);
  }

  // The same for an order in (1, 2). Gaussian: the trapezoidal rule, its step fine against the singularity of the
  // logarithm at a height of πσ². Laplace: the ratio is constant outside [0, 1], and inside Gauss and Legendre's rule.
  function lowMoment(noise, rate, order) {
    const s = noise.scale, log1 = u => (u > 30 ? u + Math.log(rate) : Math.log1p(rate * Math.expm1(u)));
    if (noise.kind === "gaussian") {
      const step = Math.min(s / 4, s * s / 2), low = -9 * s, high = order + 9 * s;
      if ((high - low) / step > 5000) return NaN;
      let sum = 0;
      for (let x = low; x < high; x += step) {
        sum += Math.exp(-0.5 * (x / s) ** 2 + order * log1((2 * x - 1) / (2 * s * s)));
      }
      return Math.log(sum * step / (s * Math.sqrt(2 * Math.PI)));
    }
    let sum = 0.5 * Math.exp(order * log1(-1 / s)) + 0.5 * Math.exp(-1 / s + order * log1(1 / s));
    const panels = Math.ceil(2 / s);
    if (panels > 200) return NaN;
    for (let panel = 0; panel < panels; panel++) {
      LEGENDRE.nodes.forEach((node, i) => {
        const x = (panel + node) / panels;
        sum += LEGENDRE.weights[i] / panels / (2 * s) * Math.exp(-x / s + order * log1((2 * x - 1) / s));
      });
    }
    return Math.log(sum);
  }

  Object.assign(X, { gaussianDelta, oneRelease, scaleFor, manyRounds });
})(typeof window === "undefined" ? globalThis : window);
