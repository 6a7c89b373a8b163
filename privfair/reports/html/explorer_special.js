// Special functions of the kernel explorer, to nearly all digits of a double.
(function (root) {
  "use strict";
  const SQRT2 = Math.SQRT2, SQRTPI = Math.sqrt(Math.PI);

  // (1 + 2u)·erfcx(u) in Chebyshev polynomials of y = (u − 3.75)/(u + 3.75), u ≥ 0; the first is halved already. The
  // coefficients are sums over 200 Chebyshev points, taken with 60 digits; what is left out is below 3e-18.
  const ERFCX = [
    1.1775789345674017541, -0.0045900545806464773309, -0.084249133366517915584, 0.059209939998191890498,
    -0.026658668435305752277, 0.0090749976707052650939, -0.0024131635404176081909, 0.00049077583652580863229,
    -0.000069169733025012063671, 4.1390279860730101675e-6, 7.7403830661984906686e-7, -2.1886401049234395661e-7,
    1.0764999465670910377e-8, 4.5219598112182868979e-9, -7.7544002088313511065e-10, -6.3180883408866844944e-11,
    2.8687950109306698981e-11, 1.945586854577734723e-13, -9.6546967484334389059e-13, 3.2525481481487398415e-14,
    3.3478119482868053878e-14, -1.8645628804193131015e-15, -1.2507950530688647085e-15, 7.418235256624043463e-17,
    5.0681489047961113168e-17,
  ];

  // e^{u²}·erfc(u); for u < 0 it grows without bound.
  function erfcx(u) {
    if (u < 0) return 2 * Math.exp(u * u) - erfcx(-u);
    if (u > 1e8) return 1 / (u * SQRTPI);
    const twice = 2 * (u - 3.75) / (u + 3.75);
    let next = 0, after = 0;
    for (let k = ERFCX.length - 1; k > 0; k--) {
      const now = ERFCX[k] + twice * next - after;
      after = next;
      next = now;
    }
    return (ERFCX[0] + 0.5 * twice * next - after) / (1 + 2 * u);
  }

  function erfc(u) {
    return u < 0 ? 2 - erfc(-u) : u > 27.5 ? 0 : Math.exp(-u * u) * erfcx(u);
  }

  // The standard normal distribution function.
  function normalCdf(x) {
    return 0.5 * erfc(-x / SQRT2);
  }

  // J_k(u) = e^{u²}·iᵏerfc(u) for u ≥ 0 and k = 0, 1, 2: the scaled repeated integrals of erfc (DLMF 7.18).
  function scaledRepeatedErfc(u, k) {
    const first = erfcx(u);
    if (k === 0) return first;
    if (u > 6) return asymptotic(u, k); // upwards from erfcx, digits would be lost as u grows
    const second = 1 / SQRTPI - u * first;
    return k === 1 ? second : (first - 2 * u * second) / 4;
  }

  // 2/√π (2u)^{−k−1} Σ_m (−1)^m (2m+k)!/(k! m!) (2u)^{−2m}, up to its smallest term: below e^{−36} of the sum here.
  function asymptotic(u, k) {
    let term = 1, total = 0, last = Infinity;
    for (let m = 0; m < 40 && Math.abs(term) < last && Math.abs(term) > 1e-18; m++) {
      total += term;
      last = Math.abs(term);
      term *= -((2 * m + k + 1) * (2 * m + k + 2)) / ((m + 1) * 4 * u * u);
    }
    return 2 / SQRTPI * total / Math.pow(2 * u, k + 1);
  }

  // iᵏerfc(u) for u < 0 and k = 0, 1, 2.
  function repeatedErfc(u, k) {
    const first = erfc(u);
    if (k === 0) return first;
    const second = Math.exp(-u * u) / SQRTPI - u * first;
    return k === 1 ? second : (first - 2 * u * second) / 4;
  }

  // ln(e^x·K_ν(x)), from K_ν(x) = ∫₀^∞ e^{−x cosh t} cosh(νt) dt; the trapezoidal rule is nearly exact for it.
  function logScaledBesselK(order, x) {
    if (order === 0.5) return 0.5 * Math.log(Math.PI / (2 * x));
    const step = 0.05 * Math.min(1, 4 / Math.sqrt(x));
    let total = 0.5;
    for (let t = step; ; t += step) {
      const half = Math.sinh(t / 2), exponent = -2 * x * half * half;
      if (exponent + order * t < -45) break;
      total += 0.5 * (Math.exp(exponent + order * t) + Math.exp(exponent - order * t));
    }
    return Math.log(total * step);
  }

  // ln Γ(x) for x > 0: Stirling's series from 15 on, and the recurrence down to x.
  function logGamma(x) {
    let shift = 0;
    while (x < 15) shift += Math.log(x++);
    const inverse = 1 / x, square = inverse * inverse;
    const series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188))));
    return (x - 0.5) * Math.log(x) - x + 0.5 * Math.log(2 * Math.PI) + series - shift;
  }

  // Nodes and weights of Gauss and Legendre on [0, 1], by Newton's method.
  function gaussLegendre(count) {
    const nodes = [], weights = [];
    for (let i = 0; i < count; i++) {
      let x = Math.cos(Math.PI * (i + 0.75) / (count + 0.5)), slope = 1;
      for (let round = 0; round < 100; round++) {
        let now = x, before = 1;
        for (let k = 2; k <= count; k++) [before, now] = [now, ((2 * k - 1) * x * now - (k - 1) * before) / k];
        slope = count * (x * now - before) / (x * x - 1);
        const move = now / slope;
        x -= move;
        if (Math.abs(move) < 1e-15) break;
      }
      nodes.push((1 - x) / 2);
      weights.push(1 / ((1 - x * x) * slope * slope));
    }
    return { nodes, weights };
  }

  root.privfairExplorer = {
    erfcx, erfc, normalCdf, scaledRepeatedErfc, repeatedErfc, logScaledBesselK, logGamma, gaussLegendre,
  };
})(typeof window === "undefined" ? globalThis : window);
