// The entropy of a row's candidates.  Contract: docs/numerics.md, "Entropy".
#pragma once

#include <cstdint>

#include "rng/fixed.hpp"
#include "samplers/tiles.hpp"

namespace aleator {

struct Entropy {
  double bits;    // of the distribution
  double depth;   // the mean, by probability, of how many bits a weight lies below the largest
  uint64_t mass;  // of all candidates, the largest logit weighing 2^40
};

// `tops` candidates share the largest logit, which lies `gap` bits above the next; the sums are of
// all others.
inline Entropy entropy_of(int64_t tops, double gap, const EntropySums& sums) {
  constexpr double one = static_cast<double>(int64_t{1} << contract::weight_bits),
                   c = contract::log2_e;
  const auto n = static_cast<double>(tops);
  const double weight = static_cast<double>(sums.weight) / one;
  const double bits = static_cast<double>(sums.bits) / one;
  const double share = exp2_double(-gap), mass = share * weight, total = n + mass;
  const double depth = share * (gap * weight + bits) / total;
  const double log = tops == 1 && mass < contract::entropy_series
                         ? mass * (c - mass * (c / 2 - mass * (c / 3)))
                         : log2_double(total);
  return {log + depth, depth, static_cast<uint64_t>(total * one)};
}

}  // namespace aleator
