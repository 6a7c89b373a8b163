// Kernels and noises by name, as the command line writes them, and the words where no deconvolution exists.
(function (root) {
  "use strict";
  const X = root.privfairExplorer;
  const NAMES = ["gaussian", "laplace", "energy", "matern32", "matern52", "rq", "cauchy"];

  // A number as "%.{digits}g" writes it.
  function short(x, digits = 6) {
    if (x === 0) return "0";
    const exponent = Number(x.toExponential(digits - 1).split("e")[1]);
    if (exponent < -4 || exponent >= digits) {
      const [mantissa, power] = x.toExponential(digits - 1).split("e");
      const size = Math.abs(Number(power));
      return `${String(Number(mantissa))}e${Number(power) < 0 ? "-" : "+"}${size < 10 ? "0" : ""}${size}`;
    }
    return String(Number(x.toPrecision(digits)));
  }

  function nameOf(part) {
    const number = part.bandwidth === undefined ? "" : short(part.bandwidth);
    if (part.kind === "energy") return "energy";
    if (part.kind === "rq") return part.alpha === 1 ? `cauchy:${number}` : `rq:${number}:${short(part.alpha)}`;
    return `${part.kind}:${number}`;
  }
  function kernelName(parts) {
    return parts.map(p => (p.factor === 1 ? "" : `${short(p.factor)}*`) + nameOf(p)).join("+");
  }
  function noiseName(noise) {
    return noise.kind === "none" ? "none" : `${noise.kind}:${short(noise.scale)}`;
  }

  function usable(x) {
    return Number.isFinite(x) && x >= 1e-3 && x <= 1e3;
  }

  // The parts that a text like 0.5*gaussian:0.3+energy names, or null.
  function parseKernel(text) {
    const parts = text.split("+").filter(term => term !== "").map(parsePart);
    return parts.length && parts.every(p => p !== null) ? parts : null;
  }
  function parsePart(term) {
    const star = term.lastIndexOf("*");
    const factor = star < 0 ? 1 : Number(term.slice(0, star));
    const [name, ...numbers] = term.slice(star + 1).trim().toLowerCase().split(":");
    if (!NAMES.includes(name) || !usable(factor)) return null;
    if (name === "energy") return numbers.length ? null : { kind: "energy", factor };
    const bandwidth = Number(numbers[0]), alpha = name === "rq" && numbers.length > 1 ? Number(numbers[1]) : 1;
    if (!usable(bandwidth) || !(alpha > 0.5 && alpha <= 100) || numbers.length > (name === "rq" ? 2 : 1)) return null;
    const kind = name === "cauchy" ? "rq" : name;
    return kind === "rq" ? { kind, bandwidth, alpha, factor } : { kind, bandwidth, factor };
  }
  function parseNoise(text) {
    const [kind, scale, ...rest] = text.trim().toLowerCase().split(":");
    if (kind === "none" && scale === undefined) return { kind, scale: 0 };
    const known = kind === "gaussian" || kind === "laplace";
    return known && rest.length === 0 && usable(Number(scale)) ? { kind, scale: Number(scale) } : null;
  }

  // Why the noise cannot be taken off (on so many sides of a pair), and what would work; "" if it can.
  function noDeconvolution(parts, noise, sides) {
    const culprit = parts.find(part => X.form([part], noise, -sides) === null);
    if (!culprit) return "";
    const twice = sides > 1, root2 = twice ? Math.SQRT2 : 1;
    let remedy;
    if (noise.kind === "gaussian") {
      remedy = `Gaussian noise of scale ${short(noise.scale)} can only be taken off a Gaussian kernel whose bandwidth is ` +
        `above ${short(noise.scale * root2, 4)}`;
      remedy += culprit.kind === "gaussian"
        ? `, or here with a noise scale below ${short(culprit.bandwidth / root2, 4)}.`
        : "; with Laplace noise a rational quadratic or Matérn-5/2 kernel works too.";
    } else {
      const kinds = twice ? "Gaussian, rational quadratic and Matérn-5/2"
        : "Gaussian, rational quadratic, Matérn-3/2 and Matérn-5/2";
      remedy = `Laplace noise can be taken off ${kinds} kernels, of any bandwidth.`;
    }
    return "kernel must have a spectrum that, divided by the noise's characteristic function" +
      `${twice ? " squared" : ""}, is integrable, to take ${noiseName(noise)} noise off${twice ? " on both sides" : ""}; ` +
      `found '${nameOf(culprit)}'. ${remedy} Or keep the kernel and accept the convolved objective (\`convolve\`).`;
  }

  // The smallest distance over which a form changes: what its table needs.
  function finest(parts, noise, power) {
    const own = parts.map(part => {
      if (part.kind === "energy") return Infinity;
      const width = part.bandwidth / { gaussian: 1, laplace: 1, matern32: 1.7, matern52: 2.2, rq: 1 }[part.kind];
      const left = part.bandwidth ** 2 + power * noise.scale ** 2;
      return part.kind === "gaussian" && noise.kind === "gaussian" && power < 0 ? Math.sqrt(left) : width;
    });
    const width = Math.min(...own, power > 0 && noise.kind !== "none" ? noise.scale : Infinity);
    return Number.isFinite(width) ? width : 1;
  }

  Object.assign(X, { short, kernelName, noiseName, parseKernel, parseNoise, noDeconvolution, finest });
})(typeof window === "undefined" ? globalThis : window);
