// Profiles v(r), r = |d| ≥ 0, of every kernel with noise put on (power > 0) or taken off (power < 0), and spectra.
// A form is a function of r; forms that do not exist are null. The noise is {kind: "none"|"gaussian"|"laplace", scale}.
(function (root) {
  "use strict";
  const X = root.privfairExplorer, SQRT2 = Math.SQRT2, SQRT2PI = Math.sqrt(2 * Math.PI);
  const LEGENDRE = X.gaussLegendre(64);
  const MATERN = { laplace: 1, matern32: 2, matern52: 3 }; // S(ω) ∝ (a² + ω²)^{−m}
  const FACTORIAL = [1, 1, 2, 6, 24];
  // e^{−x}θ(x)/2ⁿ(n−1)! is the transform of (1 + ω²)^{−n}; θ are the reverse Bessel polynomials, constant term first
  const BESSEL = [[1], [1, 1], [3, 3, 1], [15, 15, 6, 1], [105, 105, 45, 10, 1]];

  function horner(coefficients, x) {
    let total = 0;
    for (let k = coefficients.length - 1; k >= 0; k--) total = total * x + coefficients[k];
    return total;
  }

  // ---- kernels of the Matérn family: p(ar)·e^{−ar} -------------------------------------------------------------

  function rateOf(kernel) {
    return Math.sqrt({ laplace: 1, matern32: 3, matern52: 5 }[kernel.kind]) / kernel.bandwidth;
  }
  function polynomialOf(kernel) {
    return { laplace: [1], matern32: [1, 1], matern52: [1, 1, 1 / 3] }[kernel.kind].slice();
  }

  // The second derivative of p(t)e^{−t} is (p″ − 2p′ + p)e^{−t}.
  function secondDerivative(p) {
    return p.map((c, k) => c - 2 * (k + 1) * (p[k + 1] || 0) + (k + 2) * (k + 1) * (p[k + 2] || 0));
  }
  function slopeAtZero(p) {
    return (p[1] || 0) - p[0];
  }

  function maternForm(kernel, noise, power) {
    const a = rateOf(kernel);
    let p = polynomialOf(kernel);
    if (power !== 0 && noise.kind === "gaussian") return power < 0 ? null : smoothed(p, a, Math.sqrt(power) * noise.scale);
    if (power > 0) return maternWithLaplace(a, MATERN[kernel.kind], noise.scale, power);
    for (let side = 0; side < -power; side++) {
      // v − b²v″ leaves an impulse at 0 where v has a kink (the slope of a smooth kernel is 0 but for rounding)
      if (Math.abs(slopeAtZero(p)) > 1e-9 * Math.max(...p.map(Math.abs))) return null;
      const second = secondDerivative(p);
      p = p.map((c, k) => c - noise.scale ** 2 * a * a * second[k]);
    }
    const sharpened = r => horner(p, a * r) * Math.exp(-a * r);
    const slope = p.map((c, k) => (k + 1) * (p[k + 1] || 0) - c);
    sharpened.slope = r => a * horner(slope, a * r) * Math.exp(-a * r);
    return sharpened;
  }

  // c·∫ M_n(t)·(weights of m nodes at A, p at B) dt between A = a² and B = 1/b²: the divided difference that the
  // product (A + ω²)^{−m}(B + ω²)^{−p} is (Hermite, Genocchi). Every term is positive, so nothing cancels at A = B.
  function maternWithLaplace(a, m, b, p) {
    const A = a * a, B = 1 / (b * b), n = m + p, span = Math.log(B / A), theta = BESSEL[n - 1];
    const lead = [0, 2 * a, 4 * a ** 3, 16 / 3 * a ** 5][m] * B ** p * FACTORIAL[n - 1];
    const scale = lead / (FACTORIAL[m - 1] * FACTORIAL[p - 1] * 2 ** n * FACTORIAL[n - 1]);
    const roots = [], weights = [];
    LEGENDRE.nodes.forEach((y, i) => {
      const q = Math.sqrt(A * Math.exp(span * y)); // even steps in ln t
      // s = (t − A)/(B − A), and ds = t·span/(B − A)·dy; expm1 keeps both exact as B nears A
      const s = span === 0 ? y : Math.expm1(span * y) / Math.expm1(span);
      const ds = span === 0 ? 1 : Math.exp(span * y) * span / Math.expm1(span);
      roots.push(q);
      weights.push(LEGENDRE.weights[i] * ds * s ** (p - 1) * (1 - s) ** (m - 1) * scale / q ** (2 * n - 1));
    });
    return r => {
      let total = 0;
      for (let i = 0; i < roots.length; i++) {
        const x = roots[i] * r;
        if (x < 745) total += weights[i] * horner(theta, x) * Math.exp(-x);
      }
      return total;
    };
  }

  // p(a|t|)·e^{−a|t|} convolved with N(0, s²): e^{−h²}[J_k(x − h) + J_k(x + h)] for each power k, h = r/s√2.
  function smoothed(p, a, s) {
    const x = a * s / SQRT2;
    const weights = p.map((c, k) => c * 0.5 * FACTORIAL[k] * (a * s * SQRT2) ** k);
    return r => {
      const h = r / (s * SQRT2), u = x - h, gauss = Math.exp(-h * h);
      let total = 0;
      for (let k = 0; k < p.length; k++) {
        // below 0, e^{−h²}·J_k(u) as e^{x² − 2xh}·iᵏerfc(u), which stays finite
        const near = u >= 0 ? gauss * X.scaledRepeatedErfc(u, k) : Math.exp(x * x - 2 * x * h) * X.repeatedErfc(u, k);
        total += weights[k] * (near + gauss * X.scaledRepeatedErfc(x + h, k));
      }
      return total;
    };
  }

  // ---- Gaussian, energy, rational quadratic ----------------------------------------------------------------------

  function gaussianForm(kernel, noise, power) {
    const ell = kernel.bandwidth;
    if (power === 0 || noise.kind === "gaussian") {
      const variance = ell * ell + power * noise.scale ** 2;
      if (!(variance > 0)) return null;
      const height = ell / Math.sqrt(variance), form = r => height * Math.exp(-0.5 * r * r / variance);
      form.slope = r => -r / variance * form(r);
      return form;
    }
    const b = noise.scale;
    if (power > 0) return scaled(laplacePower(b, power, ell), SQRT2PI * ell);
    const q = b * b / (ell * ell); // (1 − b²D²)^p of e^{−x²/2}, in Hermite polynomials of x = r/ℓ
    const even = power === -1 ? [1 + q, -q] : [1 + 2 * q + 3 * q * q, -2 * q - 6 * q * q, q * q];
    const form = r => horner(even, (r / ell) ** 2) * Math.exp(-0.5 * (r / ell) ** 2);
    const inner = even.map((c, k) => 2 * (k + 1) * (even[k + 1] || 0) - c);
    form.slope = r => r / (ell * ell) * horner(inner, (r / ell) ** 2) * Math.exp(-0.5 * (r / ell) ** 2);
    return form;
  }

  // The density of one or two Laplace(b) noises, smoothed by N(0, s²).
  function laplacePower(b, power, s) {
    return power === 1 ? smoothed([0.5 / b], 1 / b, s) : smoothed([0.25 / b, 0.25 / b], 1 / b, s);
  }
  function scaled(form, factor) {
    return r => factor * form(r);
  }

  function energyForm(noise, power) {
    if (power === 0) {
      const line = r => -0.5 * r;
      line.slope = () => -0.5;
      return line;
    }
    if (power < 0) return null;
    const b = noise.scale;
    if (noise.kind === "laplace") {
      const p = power === 1 ? [1] : [1.5, 0.5];
      return r => -0.5 * (r + b * horner(p, r / b) * Math.exp(-r / b));
    }
    const s = Math.sqrt(power) * b;
    return r => -0.5 * (r + s * Math.sqrt(2 / Math.PI) * Math.exp(-0.5 * (r / s) ** 2) - r * X.erfc(r / (s * SQRT2)));
  }

  function rationalForm(kernel, noise, power) {
    const alpha = kernel.alpha, ell = kernel.bandwidth, beta = 1 / (2 * alpha * ell * ell);
    if (noise.kind === "gaussian" && power < 0) return null;
    if (power > 0) return mixture(alpha, ell, noise, power);
    const b2 = power ? noise.scale ** 2 : 0, operator = [[1], [1, -b2], [1, -2 * b2, b2 * b2]][-power];
    const sum = (r, order) => {
      const d = rationalDerivatives(alpha, beta, r, 2 * operator.length - 2 + order);
      return operator.reduce((total, c, n) => total + c * d[2 * n + order], 0);
    };
    const form = r => sum(r, 0);
    form.slope = r => sum(r, 1);
    return form;
  }

  // y⁽ⁿ⁺¹⁾(1 + βd²) = −2βd(n + α)y⁽ⁿ⁾ − nβ(n − 1 + 2α)y⁽ⁿ⁻¹⁾
  function rationalDerivatives(alpha, beta, d, highest) {
    const base = 1 + beta * d * d, values = [base ** -alpha];
    for (let n = 0; n < highest; n++) {
      const before = n ? n * beta * (n - 1 + 2 * alpha) * values[n - 1] : 0;
      values.push(-(2 * beta * d * (n + alpha) * values[n] + before) / base);
    }
    return values;
  }

  // A mixture of Gaussian kernels of bandwidths ℓ/√τ, τ ~ Gamma(α, α), each with the noise on it; trapezoidal in ln τ.
  function mixture(alpha, ell, noise, power) {
    const step = 0.3 / Math.sqrt(Math.max(1, alpha)), parts = [];
    for (let u = -30 / alpha - 1; u < 4; u += step) {
      const weight = step * Math.exp(alpha * (Math.log(alpha) + u - Math.exp(u)) - X.logGamma(alpha));
      if (weight < 1e-16) continue;
      parts.push([weight, gaussianForm({ bandwidth: ell * Math.exp(-u / 2) }, noise, power)]);
    }
    const exact = r => {
      let total = 0;
      for (const [weight, form] of parts) total += weight * form(r);
      return total;
    };
    exact.quick = reach => interpolated(exact, ell * Math.min(Math.sqrt(2 * alpha), 2), reach);
    return exact;
  }

  // An even function, analytic near the real line, by Chebyshev polynomials of even degree in arsinh(r/width).
  function interpolated(form, width, reach) {
    const end = Math.asinh(reach / width), count = Math.ceil(24 + 12 * end), angles = [];
    for (let i = 0; i < count; i++) angles.push(0.5 * Math.PI * (i + 0.5) / count);
    const values = angles.map(angle => form(width * Math.sinh(end * Math.cos(angle)))), c = [];
    for (let k = 0; k < count; k++) {
      c.push(2 / count * values.reduce((sum, value, i) => sum + value * Math.cos(2 * k * angles[i]), 0));
    }
    return r => {
      const x = Math.asinh(r / width) / end, twice = 2 * (2 * x * x - 1);
      let next = 0, after = 0;
      for (let k = count - 1; k > 0; k--) {
        const now = c[k] + twice * next - after;
        after = next;
        next = now;
      }
      return 0.5 * c[0] + 0.5 * twice * next - after;
    };
  }

  // ---- one kernel, and sums of kernels ---------------------------------------------------------------------------

  function singleForm(kernel, noise, power) {
    const times = noise.kind === "none" || noise.scale === 0 ? 0 : power;
    if (kernel.kind === "gaussian") return gaussianForm(kernel, noise, times);
    if (kernel.kind === "energy") return energyForm(noise, times);
    if (kernel.kind === "rq") return rationalForm(kernel, noise, times);
    return maternForm(kernel, noise, times);
  }

  // The form of Σ factor·kernel; null if one of the parts has none.
  function form(parts, noise, power) {
    const forms = parts.map(part => singleForm(part, noise, power));
    if (forms.some(f => f === null)) return null;
    if (forms.length === 1 && parts[0].factor === 1) return forms[0];
    const total = r => forms.reduce((sum, f, i) => sum + parts[i].factor * f(r), 0);
    if (forms.every(f => f.slope)) total.slope = r => forms.reduce((sum, f, i) => sum + parts[i].factor * f.slope(r), 0);
    if (forms.some(f => f.quick)) {
      total.quick = reach => {
        const fast = forms.map(f => (f.quick ? f.quick(reach) : f));
        return r => fast.reduce((sum, f, i) => sum + parts[i].factor * f(r), 0);
      };
    }
    return total;
  }

  // ln S(ω) of one kernel, ω > 0.
  function logSpectrumOf(kernel, w) {
    const ell = kernel.bandwidth;
    if (kernel.kind === "gaussian") return Math.log(ell * SQRT2PI) - 0.5 * (ell * w) ** 2;
    if (kernel.kind === "energy") return -2 * Math.log(w);
    if (kernel.kind === "rq") {
      const c = ell * Math.sqrt(2 * kernel.alpha), order = kernel.alpha - 0.5, x = Math.max(w * c, 1e-8);
      const constant = Math.log(2 * Math.sqrt(Math.PI) * c) - X.logGamma(kernel.alpha);
      return constant + order * Math.log(x / 2) + X.logScaledBesselK(order, x) - x;
    }
    const a = rateOf(kernel), m = MATERN[kernel.kind];
    return Math.log([0, 2, 4, 16 / 3][m] / a) - m * Math.log1p((w / a) ** 2);
  }

  // ln φ(ω) of the noise.
  function logCharacteristic(noise, w) {
    if (noise.kind === "none") return 0;
    return noise.kind === "gaussian" ? -0.5 * (noise.scale * w) ** 2 : -Math.log1p((noise.scale * w) ** 2);
  }

  // ln S(ω) + power·ln φ(ω) of a sum of kernels.
  function logSpectrum(parts, noise, power, w) {
    const logs = parts.map(part => Math.log(part.factor) + logSpectrumOf(part, w)), top = Math.max(...logs);
    const sum = logs.reduce((total, x) => total + Math.exp(x - top), 0);
    return top + Math.log(sum) + power * logCharacteristic(noise, w);
  }

  Object.assign(X, { form, logSpectrum, logCharacteristic });
})(typeof window === "undefined" ? globalThis : window);
