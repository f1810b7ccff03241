#include "layers/per_layer.hpp"

#include <cmath>

#include "layers/rows.hpp"

namespace aleator {

void PerLayer::prepare(int64_t tokens) {
  if (!any()) return;
  tokens_ = tokens;
  const size_t n = size_t(tokens * all_.projection.out);
  inputs_.resize(n), rows_.resize(n), gate_.resize(tokens * all_.width);
}

void PerLayer::project(int thread, Products& products, const int64_t* ids) {
  const Weights& w = all_.projection;
  const int64_t n = w.out, width = all_.width;
  products.run(thread, w, products.x(0), inputs_.data());
  const float shorter = 1.0f / std::sqrt(float(w.in)), longer = std::sqrt(float(width)),
              half = 1.0f / std::sqrt(2.0f);
  products.pool().each(thread, tokens_, [&](int64_t t) {
    float *y = &inputs_[t * n], *row = &rows_[t * n];
    read_row_(all_.embedding, ids ? ids[t] : 0, row);
    for (int64_t i = 0; i < n; i++) y[i] *= shorter;
    for (int64_t l = 0; l < n; l += width) products.norm(y + l, all_.norm, width, y + l);
    for (int64_t i = 0; i < n; i++) {
      row[i] *= longer;
      y[i] = (y[i] + row[i]) * half;
    }
  });
}

void PerLayer::add(int thread, Products& products, const LayerEmbedding& l, Gate gate) {
  const int64_t width = all_.width, n = all_.projection.out;
  products.run(thread, l.in, products.x(0), gate_.data());
  products.pool().each(thread, tokens_, [&](int64_t t) {
    apply_gate(gate, &gate_[t * width], &inputs_[t * n + l.layer * width], width);
  });
  products.add_rows(thread, l.out, gate_.data(), l.norm);
}

}  // namespace aleator
