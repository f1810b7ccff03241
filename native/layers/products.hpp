// What the layers of a step have in common: the running sum x [tokens, n_embd], its norms, and
// matrix products shared out among the threads of a pool.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "layers/adapters.hpp"
#include "layers/input_squares.hpp"
#include "threads/pool.hpp"

namespace aleator {

struct Product {
  const Weights* weights;
  float* out;  // [tokens, weights->out]
};

// Room for n elements at least.
template <class T>
void grow(std::vector<T>& v, int64_t n) {
  if (int64_t(v.size()) < n) v.resize(n);
}

// Units of gate and up that are read in turns: with few tokens several of each, as what is asked
// for ahead is lost while the other is read.
inline int64_t units_in_turn(int64_t tokens) { return tokens <= few_rounded ? 4 : 1; }

// How rows are normalised.  The weights of a layer norm are followed by as many biases.
enum class Norm : int { rms, layer };

class Products {
 public:
  // Makes room for `tokens` rows of n_embd.  eps: of every norm; scale: of what is added to x.
  void prepare(Pool& pool, int64_t tokens, int64_t n_embd, Norm norm, float eps, float scale);
  Pool& pool() { return *pool_; }
  Adapters& adapters() { return adapters_; }
  float eps() const { return eps_; }
  float* x(int64_t token) { return &x_[token * n_embd_]; }
  // Whether one token meets all matrices in memory's order: one stream for each thread.
  void read_in_order(bool so) { in_order_ = so; }

  // The rest is called by every thread of the pool.

  // Rows of x [tokens, in], `stride` apart, in the forms that products need.
  Input input(int thread, const float* x, int64_t stride, int64_t in, Forms forms);
  // y = x normalised; without weights y = x.
  void norm(const float* x, const float* weight, int64_t n, float* y) const;
  // The running sum normalised, in these forms.
  Input normed(int thread, const float* weight, Forms forms);
  // Several matrices with one input, but those without data, and a barrier; after(product, begin,
  // end) follows on the thread that has computed these rows of a product's matrix.
  template <class F>
  void run(int thread, const Input& x, std::initializer_list<Product> list, F&& after) {
    multiply(thread, x, list, adapters_.all(), after);
    pool_->barrier();
  }
  void run(int thread, const Input& x, std::initializer_list<Product> list) {
    run(thread, x, list, nothing_after);
  }
  // One matrix with rows x [tokens, W.in] of its own, and a barrier.
  void run(int thread, const Weights& w, const float* x, float* out) {
    run(thread, input(thread, x, w.in, w.in, forms_of({&w})), {{&w, out}});
  }
  // What adapters take of the input of these products, before their rows are computed.
  void lower(int thread, const Input& x, std::initializer_list<Product> list) {
    lower(thread, x, list, adapters_.all());
  }
  void lower(int thread, const Input& x, std::initializer_list<Product> list,
             const AdaptedRows& rows) {
    if (!adapters_.any()) return;
    adapters_.begin(thread, rows);
    for (const Product& p : list) adapters_.find(thread, *p.weights);
    adapters_.lower(thread, x);
  }
  // How a product is shared out among threads.
  Shares shares(const Weights& w, int64_t tokens) const {
    return adapters_.any() ? adapters_.shares(w, tokens) : shares_of(w, tokens, in_order_);
  }
  // Rows [begin, end) of each of so many parts of product k, with its adapters.
  void product(int thread, int64_t k, const Weights& w, int64_t parts, int64_t begin, int64_t end,
               const Input& x, float* out) const {
    product_rows(w, begin, end, x, out, w.out, parts);
    adapters_.add(thread, k, w, begin, end, out);  // there are none where there are parts
  }
  // The running sum += scale * W x, or += W x normalised if there is a norm, or += W x and then
  // normalised if it is of the sums: of rows x of floats [tokens, W.in].  A barrier follows.
  void add_rows(int thread, const Weights& w, const float* x, const float* norm = nullptr,
                bool of_sums = false);
  // Rows `rows` of the running sum, normalised, times W: out [n, W.out]; without W [n, n_embd].  No
  // barrier follows.
  void logits(int thread, const Weights& w, const float* norm, const int64_t* rows, int64_t n,
              float* out);

 private:
  static void nothing_after(int64_t, int64_t, int64_t) {}
  template <class F>
  void multiply(int thread, const Input& x, std::initializer_list<Product> list,
                const AdaptedRows& adapted, F&& after) {
    lower(thread, x, list, adapted);
    const auto shares_of = [&](const Product& p) { return shares(*p.weights, x.tokens); };
    const auto units = [&](const Product& p) {
      return p.weights->data ? shares_of(p).pieces() : 0;
    };
    int64_t n = 0;
    for (const Product& p : list) n += units(p);
    pool_->split(thread, n, [&](int64_t unit) {
      const Product* p = list.begin();
      for (; unit >= units(*p); p++) unit -= units(*p);
      const Shares shares = shares_of(*p);
      const int64_t begin = unit * shares.rows, k = p - list.begin();
      const int64_t end = std::min(begin + shares.rows, shares.rows_of_part);
      product(thread, k, *p->weights, shares.parts, begin, end, x, p->out);
      shares.each_part(begin, end, [&](int64_t from, int64_t to) { after(k, from, to); });
    });
  }

  Pool* pool_ = nullptr;
  Norm norm_ = Norm::rms;
  float eps_ = 0, scale_ = 1;
  Adapters adapters_;
  bool in_order_ = false;
  int64_t tokens_ = 0, n_embd_ = 0;
  std::vector<float> x_, sum_, apart_;
  // Of few tokens each thread makes the forms for itself: less work than waiting for another.
  struct Own {
    std::vector<float> normed;
    FormedRows formed;
  };
  template <class Row>
  Input forms(int thread, int64_t in, int64_t tokens, Forms forms, const float* rows,
              int64_t stride, Row&& row);
  std::vector<Own> own_;
  FormedRows formed_;  // of many tokens
};

}  // namespace aleator
