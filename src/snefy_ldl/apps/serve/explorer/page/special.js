"use strict";
// Logarithms of Gamma and Beta functions, and the Gauss-Legendre rule that every panel uses.

const EIGHT = (() => {
  const nodes = [0.1834346424956498, 0.525532409916329, 0.7966664774136267, 0.9602898564975363];
  const weights = [0.362683783378362, 0.3137066458778873, 0.2223810344533745, 0.1012285362903763];
  return {
    nodes: Float64Array.from([...nodes.slice().reverse().map(x => -x), ...nodes]),
    weights: Float64Array.from([...weights.slice().reverse(), ...weights]),
  };
})();

// Stirling's series beyond 10, reached by the recurrence: relative errors stay below 1e-14.
function logGamma(x) {
  let product = 1;
  while (x < 10) { product *= x; x += 1; }
  const s = 1 / (x * x);
  const series = (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s * (1 / 1188 - s * 691 / 360360))))) / x;
  return (x - 0.5) * Math.log(x) - x + 0.9189385332046727 + series - Math.log(product);
}

function logBeta(a, b) { return logGamma(a) + logGamma(b) - logGamma(a + b); }

// Legendre coefficients of a function known at the eight nodes, and its integral from -1 to s.
const TO_LEGENDRE = (() => {
  const table = [];
  for (let m = 0; m < 8; m++) {
    const row = new Float64Array(8);
    for (let k = 0; k < 8; k++) row[k] = (m + 0.5) * legendre(EIGHT.nodes[k])[m] * EIGHT.weights[k];
    table.push(row);
  }
  return table;
})();

function legendre(s) {
  const p = new Float64Array(9);
  p[0] = 1; p[1] = s;
  for (let m = 2; m < 9; m++) p[m] = ((2 * m - 1) * s * p[m - 1] - (m - 1) * p[m - 2]) / m;
  return p;
}

function coefficients(values, start) {
  const a = new Float64Array(8);
  for (let m = 0; m < 8; m++) {
    let sum = 0;
    for (let k = 0; k < 8; k++) sum += TO_LEGENDRE[m][k] * values[start + k];
    a[m] = sum;
  }
  return a;
}

function integrated(a, s) {
  const p = legendre(s);
  let sum = a[0] * (s + 1);
  for (let m = 1; m < 8; m++) sum += a[m] * (p[m + 1] - p[m - 1]) / (2 * m + 1);
  return sum;
}

const logistic = z => z >= 0 ? 1 / (1 + Math.exp(-z)) : Math.exp(z) / (1 + Math.exp(z));
const logLogistic = z => z >= 0 ? -Math.log1p(Math.exp(-z)) : z - Math.log1p(Math.exp(z));
