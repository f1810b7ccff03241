#include "layers/ssm_step.hpp"

#include <algorithm>

#include "layers/rows.hpp"
#include "threads/float_rules.hpp"

namespace aleator {

void SSMStep::run(Pool& pool, const SSMBatch& batch, Watch* watch) {
  Pool::refuse_while_looking();
  std::lock_guard lock(turn_);
  const FloatRules rules;
  prepare(pool, batch);
  pool.run(
      [&](int thread) {
        for (const RecurrentLayer& l : layers_)
          work_.run(thread, products_, l, batch.runs, shape_.eps);
        products_.logits(thread, shape_.output, shape_.output_norm, shape_.eps, batch.out_rows,
                         batch.n_out, batch.logits);
      },
      watch);
}

void SSMStep::prepare(Pool& pool, const SSMBatch& batch) {
  const int64_t t = batch.tokens, e = shape_.embedding.in;
  products_.prepare(pool, t, e);
  work_.prepare(t, layers_);
  for (int64_t i = 0; i < t; i++)
    if (batch.embeddings)
      std::copy_n(batch.embeddings + i * e, e, products_.x(i));
    else
      read_row_(shape_.embedding, batch.ids[i], products_.x(i));
}

}  // namespace aleator
