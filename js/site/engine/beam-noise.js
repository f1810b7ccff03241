/** @file The noise of stochastic beams (src/aleator/generate/beams.py, core/philox.py). */

import { native } from "../aleator/index.js";
import constants from "../constants.js";
import { blake2b } from "./fingerprint.js";

const { GUMBEL } = constants.beams;

/** The key of a text extended by one token. */
export function follower(key, token = 0) {
  const bytes = new Uint8Array(BigUint64Array.of(key, BigInt(token)).buffer);
  const digest = blake2b(bytes, 8).match(/../g).reverse().join("");
  return BigInt(`0x${digest}`);
}

/** Standard Gumbel noise of token ids: -ln(-ln u), u the middle of one of 2^52 parts of (0, 1). */
export function gumbel(key, ids, position = 0) {
  return Float64Array.from(ids, (id) => {
    const [low, up] = native.philox4x32([id, position, 0, GUMBEL], key);
    return -Math.log(-Math.log((up * 2 ** 20 + (low >>> 12) + 0.5) * 2 ** -52));
  });
}

/** Gumbel variables, conditioned on their maximum being `largest`: Kool et al. 2019, appendix B.3. */
export function withMaximum(perturbed, largest) {
  const most = perturbed.reduce((a, b) => Math.max(a, b), -Infinity);
  return perturbed.map((x) => {
    const below = x - most;
    const v = largest - x + (below > -1 ? Math.log(-Math.expm1(below)) : Math.log1p(-Math.exp(below)));
    return largest - Math.max(0, v) - Math.log1p(Math.exp(-Math.abs(v)));
  });
}
