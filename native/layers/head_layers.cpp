#include "layers/head_layers.hpp"

#include <algorithm>

#include "layers/rows.hpp"

namespace aleator {

void HeadLayers::project(int thread, Products& products, const HeadLayer& l, const Runs& runs,
                         const Input& x) {
  const HeadSpace& s = l.space;
  const int64_t first = s.inner, last = first + s.conv.channels;
  // A thread convolves the channels whose values it has just computed.
  products.run(thread, x, {{&l.in, projected_.data()}}, [&](int64_t, int64_t begin, int64_t end) {
    begin = std::max(begin, first) - first, end = std::min(end, last) - first;
    for (; begin < end; begin += most_channels)
      convolve_(s.conv, runs, begin, std::min(begin + most_channels, end),
                projected_.data() + first, s.projected(), true, convolved_.data());
  });
}

void HeadLayers::finish(int thread, Products& products, const HeadLayer& l, const Runs& runs,
                        float eps, float scale) {
  const HeadSpace& s = l.space;
  Pool& pool = products.pool();
  pool.split(thread, s.heads, [&](int64_t head) {
    scan_head_(s, runs, tokens_, head, projected_.data(), convolved_.data(), y_.data());
  });
  pool.barrier();
  if (s.norm) {
    const int64_t n = s.inner / s.norm_groups;
    pool.split(thread, tokens_ * s.norm_groups, [&](int64_t unit) {
      float* part = &y_[size_t(unit * n)];
      rms_norm_(part, s.norm + unit % s.norm_groups * n, n, eps, part);
    });
    pool.barrier();
  }
  products.add_rows(thread, l.out, y_.data(), tokens_, scale);
}

void HeadLayers::run(int thread, Products& products, const ShortLayer& l, const Runs& runs,
                     float eps, float scale) {
  Pool& pool = products.pool();
  const int64_t n = l.conv.channels;
  products.run(thread, products.normed(thread, l.norm, eps, forms_of({&l.in})),
               {{&l.in, projected_.data()}});
  pool.barrier();
  constexpr int64_t channels = 32;
  pool.split(thread, (n + channels - 1) / channels, [&](int64_t unit) {
    const int64_t begin = unit * channels, end = std::min(n, begin + channels);
    for (int64_t t = 0; t < tokens_; t++) {
      float* row = &projected_[size_t(t * 3 * n)];
      for (int64_t i = begin; i < end; i++) row[i] *= row[2 * n + i];
    }
    convolve_(l.conv, runs, begin, end, projected_.data(), 3 * n, false, y_.data());
    for (int64_t t = 0; t < tokens_; t++)
      for (int64_t i = begin; i < end; i++)
        y_[size_t(t * n + i)] *= projected_[size_t((3 * t + 1) * n + i)];
  });
  pool.barrier();
  products.add_rows(thread, l.out, y_.data(), tokens_, scale);
}

}  // namespace aleator
