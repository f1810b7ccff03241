// The Mersenne Twister as llama.cpp's samplers consume it (study of llama.cpp 0.5.0): a 32-bit
// seed, and two words, low half first, for a uniform double in [0, 1).
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

namespace aleator {

class Mt19937 {
 public:
  explicit Mt19937(uint32_t seed) : engine_(seed) {}
  void reseed(uint32_t seed) { engine_.seed(seed); }
  void discard(uint64_t words) { engine_.discard(words); }
  uint32_t word() { return uint32_t(engine_()); }

  // Spelled out because C++ leaves the formula of generate_canonical to the library.  Each
  // operation is rounded to double as libstdc++ rounds it; a sum that rounds up to 2^64 becomes the
  // last double below 1.
  double uniform_double() {
    const double low = word(), high = word();
    const double u = (low + high * 4294967296.0) / 18446744073709551616.0;
    return u < 1.0 ? u : std::nextafter(1.0, 0.0);
  }

  float uniform_float() {
    const float u = float(word()) / 4294967296.0f;
    return u < 1.0f ? u : std::nextafterf(1.0f, 0.0f);
  }

 private:
  std::mt19937 engine_;
};

}  // namespace aleator
