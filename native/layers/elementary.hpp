// Functions of float64 from additions, multiplications and divisions alone, each rounded by itself,
// so that every machine gives the same bits: a C library's may differ from another's.
#pragma once

namespace aleator {

struct CosSin {
  double cos, sin;
};
// Within 1e-15 for |x| up to 2^31; beyond 2^52, and where x is not finite, NaN.
CosSin cos_sin(double x);

// Within 1e-15; NaN of NaN.
double tanh_double(double x);

}  // namespace aleator
