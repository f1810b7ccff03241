#include "layers/elementary.hpp"

#include <cstdint>
#include <initializer_list>

namespace aleator {

// c[0] x^(n - 1) + ... + c[n - 1], by Horner's rule.
static double polynomial(double x, std::initializer_list<double> c) {
  double p = 0;
  for (double i : c) p = p * x + i;
  return p;
}

// The integer nearest to x, |x| < 2^51, ties to even.
static double nearest(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

CosSin cos_sin(double x) {
  constexpr double inf = __builtin_inf();
  if (!(x > -0x1p52 && x < 0x1p52)) return {inf - inf, inf - inf};
  // x = n pi / 2 + r.  The first two parts of pi / 2 have 22 bits: their products with n < 2^31 are
  // exact, and so is the first difference.
  const double n = nearest(x * 0x1.45f306dc9c883p-1);
  const double r = ((x - n * 0x1.921fb0p0) - n * 0x1.5110b0p-22) - n * 0x1.18469898cc517p-44;
  const double r2 = r * r;
  // Taylor's series on |r| <= pi / 4: the terms that are left out are below 1e-17.
  const double s = r + r * r2 *
                           polynomial(r2, {-1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800,
                                           1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6});
  const double c =
      1 + r2 * polynomial(r2, {1.0 / 20922789888000, -1.0 / 87178291200, 1.0 / 479001600,
                               -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5});
  switch (int64_t(n) & 3) {
    case 0:
      return {c, s};
    case 1:
      return {-s, c};
    case 2:
      return {-c, -s};
    default:
      return {s, -c};
  }
}

// e^x for x in [0, 40].
static double exponential(double x) {
  const double n = nearest(x * 0x1.71547652b82fep0);
  const double r = (x - n * 0x1.62e42fefa2p-1) - n * 0x1.9ef35793c7673p-41;
  double p = 1;
  for (int k = 16; k > 0; k--) p = 1 + p * r / k;
  return p * double(int64_t(1) << int64_t(n));
}

double tanh_double(double x) {
  const double a = x < 0 ? -x : x;
  if (!(a < 20)) return a > 0 ? (x > 0 ? 1.0 : -1.0) : x;  // within 1e-17, or NaN
  if (a < 0.3) {  // by the continued fraction x / (1 + x^2 / (3 + x^2 / (5 + ...)))
    double f = 21;
    for (int k = 19; k > 0; k -= 2) f = k + a * a / f;
    return x / f;
  }
  const double t = 1 - 2 / (exponential(2 * a) + 1);
  return x < 0 ? -t : t;
}

}  // namespace aleator
