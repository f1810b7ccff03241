// Python's DraftHead: all guesses of a step for several texts in one call, a layer of a decoder and
// what stands around it.
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <limits>
#include <variant>

#include "layers/bound_decoder_step.hpp"
#include "layers/linear.hpp"
#include "llama/chain.hpp"
#include "samplers/chain.hpp"
#include "samplers/chain_binding.hpp"

namespace aleator {

// A copy of the chain that draws a text.
class CopiedChain {
 public:
  explicit CopiedChain(nb::handle chain) {
    Chain* portable = nullptr;
    if (nb::try_cast<Chain*>(chain, portable)) {
      const Busy busy(portable->in_use, pause_without_gil, kReads);
      copy_ = std::make_unique<Chain>(*portable);
    } else {
      auto* of_llama = nb::cast<llama::LlamaChain*>(chain);
      const Busy busy(of_llama->in_use, pause_without_gil, kReads);
      copy_ = std::make_unique<llama::LlamaChain>(*of_llama);
    }
  }
  // The next token; -1: it fails.  The chain itself may fail as well, and then says why.
  int64_t sample(const std::vector<float>& logits) {
    try {
      return std::visit(
          [&](auto& c) { return c->sample(logits.data(), int64_t(logits.size()), Dtype::f32); },
          copy_);
    } catch (nb::python_error& error) {  // from a user's sampler
      const nb::gil_scoped_acquire gil;
      if (!error.matches(PyExc_Exception)) throw;
    } catch (const std::exception&) {
    }
    return -1;
  }

 private:
  std::variant<std::unique_ptr<Chain>, std::unique_ptr<llama::LlamaChain>> copy_;
};

class BoundDraftHead {
 public:
  // A guess's kind: how many of these its logit leads all others by.
  static constexpr float leads[] = {-1.0f, 0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  static constexpr int64_t kinds = std::size(leads) + 1;
  using Hidden = Array<const float, 3>;
  // Place, first position, hidden states, the tokens that follow them, most guesses, least, rates,
  // chain: see the binding.
  using GivenText = std::tuple<int64_t, int64_t, std::vector<Hidden>, std::vector<int64_t>, int64_t,
                               float, std::vector<float>, nb::object>;
  using Guesses = std::pair<std::vector<int64_t>, std::vector<int64_t>>;

  BoundDraftHead(nb::object step, nb::object parts, int64_t places)
      : step_(std::move(step)), layer_(nb::cast<BoundDecoderStep*>(step_)) {
    const Given given(std::move(parts), kept_);
    const int64_t e = layer_->shape().n_embd();
    eps_ = layer_->shape().eps, scale_ = given.get<float>("embedding_scale");
    embedding_ = given.matrix("embedding"), fuse_ = given.matrix("fuse");
    join_ = given.matrix("join");
    seen_ = given.get<int64_t>("n_seen"), normed_ = given.get<bool>("normed_residual");
    embedding_norm_ = given.needed("embedding_norm", e, "the norm of embeddings");
    hidden_norm_ = given.needed("hidden_norm", e, "the norm of hidden states");
    fuse_norm_ = given.vector("fuse_norm", seen_, "the norm of what is fused");
    follow_norm_ = given.vector("follow_norm", e, "the norm of what the layer gives");
    given.sized(embedding_, embedding_.out, e, "the embedding");
    require(seen_ >= e && seen_ % e == 0 && (fuse_.data || seen_ == e), seen_, " numbers seen");
    if (fuse_.data) given.sized(fuse_, e, seen_, "fc");
    if (join_.data) given.sized(join_, e, 2 * e, "nextn.eh_proj");
    require(layer_->stride() == (join_.data ? e : 3 * e), "the layer takes another width");
    require(layer_->n_layers() == 1 && layer_->n_cells() > 0, "a head is a layer with attention");
    cells_ = layer_->n_cells() / std::max(places, int64_t(1));
    require(places >= 1 && cells_ >= 1 && cells_ * places == layer_->n_cells(), places, " places");
    const int64_t n_tokens = given.get<int64_t>("n_tokens");
    require(n_tokens >= 1 && n_tokens <= embedding_.out, n_tokens, " tokens");
    logits_.assign(n_tokens, -std::numeric_limits<float>::infinity());
    if (given.has("ids")) {
      const auto ids = given.get<Array<const int64_t>>("ids");
      ids_.assign(ids.data(), ids.data() + ids.size());
    } else {
      for (int64_t i = 0; i < n_tokens; i++) ids_.push_back(i);
    }
    require(int64_t(ids_.size()) <= layer_->n_out(), ids_.size(), " tokens of the head");
    for (const int64_t id : ids_)
      require(id >= 0 && id < embedding_.out, "token ", id, " of the head");
  }

  std::vector<Guesses> guess(Pool& pool, const std::vector<GivenText>& given, int64_t window) {
    std::vector<Text> texts;
    for (const GivenText& each : given) texts.push_back(checked(each, window));
    interruptibly([&](Watch& watch) { run(pool, texts, window, &watch); });
    std::vector<Guesses> made;
    for (Text& text : texts) made.push_back(std::move(text.made));
    return made;
  }

 private:
  struct Text {
    int64_t first, cell, most;  // the next row's position; where its cells begin
    std::vector<const float*> hidden;
    std::vector<int64_t> tokens;  // that the next rows are made of
    double least, sure;           // what `sure`, that all guesses are right, must not fall below
    std::vector<float> rates;
    CopiedChain chain;
    Guesses made;
    int64_t rows() const { return int64_t(tokens.size()); }
  };

  Text checked(const GivenText& given, int64_t window) const {
    const auto& [place, first, hidden, tokens, most, least, rates, chain] = given;
    const int64_t n = int64_t(tokens.size());
    require(place >= 0 && (place + 1) * cells_ <= layer_->n_cells(), "place ", place);
    require(first >= 0 && first < int64_t(1) << 30 && n >= 1 && most >= 1, "position ", first);
    require(window >= 1 && window <= cells_ && n <= cells_ - window && most <= cells_ - window - n,
            "no room for ", n, " tokens and ", most, " guesses behind ", window);
    require(int64_t(rates.size()) == kinds, "a rate of each kind");
    std::vector<const float*> rows;
    for (const Hidden& piece : hidden) {
      const int64_t width = int64_t(piece.shape(1) * piece.shape(2));
      require(piece.shape(0) == 0 || width == seen_, "hidden states of ", width, " numbers");
      for (size_t i = 0; i < piece.shape(0); i++) rows.push_back(piece.data() + i * seen_);
    }
    require(int64_t(rows.size()) == n, rows.size(), " hidden states of ", n, " tokens");
    for (const int64_t token : tokens)
      require(token >= 0 && token < embedding_.out, "token ", token);
    return {first, place * cells_,     most, std::move(rows), tokens, least, 1.0,
            rates, CopiedChain(chain), {}};
  }

  // What the layer takes at a position of a text.
  struct Row {
    Text* text;
    int64_t at, token;
    const float* hidden;
  };

  void run(Pool& pool, std::vector<Text>& texts, int64_t window, Watch* watch) {
    const int64_t e = layer_->shape().n_embd();
    fuse(pool, texts);
    std::vector<Row> before, rows;
    const float* hidden = hidden_.data();
    for (Text& text : texts)
      for (int64_t i = 0; i < text.rows(); i++, hidden += e)
        (i + 1 < text.rows() ? before : rows)
            .push_back({&text, text.first + i, text.tokens[i], hidden});
    if (!before.empty()) compute(pool, before, window, true, watch);
    grow(states_, int64_t(rows.size()) * e);
    while (!rows.empty()) {
      compute(pool, rows, window, false, watch);
      std::vector<Row> next;
      for (size_t i = 0; i < rows.size(); i++) {
        const int64_t token = draw(*rows[i].text, int64_t(i));
        if (token < 0) continue;
        float* state = &states_[int64_t(next.size()) * e];
        normalise(&given_[int64_t(i) * e], follow_norm_, e, state);
        next.push_back({rows[i].text, rows[i].at + 1, token, state});
      }
      rows = std::move(next);
    }
  }

  // Hidden states of tokens, of what layers of the model took.
  void fuse(Pool& pool, const std::vector<Text>& texts) {
    const int64_t e = layer_->shape().n_embd();
    int64_t n = 0;
    for (const Text& text : texts) n += text.rows();
    grow(seen_rows_, n * seen_), grow(hidden_, n * e);
    float* to = seen_rows_.data();
    for (const Text& text : texts)
      for (const float* row : text.hidden) {
        normalise(row, fuse_norm_, seen_, to);
        to += seen_;
      }
    if (fuse_.data)
      multiply(pool, fuse_, seen_rows_.data(), n, hidden_.data());
    else
      std::copy_n(seen_rows_.data(), n * e, hidden_.data());
  }

  // What the layer takes of tokens and hidden states.
  const float* inputs(Pool& pool, const std::vector<Row>& rows) {
    const int64_t e = layer_->shape().n_embd(), stride = join_.data ? 2 * e : 3 * e;
    const int64_t n = int64_t(rows.size());
    grow(inputs_, n * stride);
    float* to = inputs_.data();
    for (const Row& row : rows) {
      float *embedded = join_.data ? to : to + e, *normed = embedded + e;
      read_row_(embedding_, row.token, embedded);
      for (int64_t i = 0; scale_ != 1 && i < e; i++) embedded[i] *= scale_;
      rms_norm_(embedded, embedding_norm_, e, eps_, embedded);
      rms_norm_(row.hidden, hidden_norm_, e, eps_, normed);
      if (!join_.data) std::copy_n(normed_ ? normed : row.hidden, e, to);
      to += stride;
    }
    if (!join_.data) return inputs_.data();
    grow(joined_, n * e);
    multiply(pool, join_, inputs_.data(), n, joined_.data());
    return joined_.data();
  }

  // The layer for rows, those of a text one after the other: only their keys and values, or all,
  // with logits.
  void compute(Pool& pool, const std::vector<Row>& rows, int64_t window, bool keys_only,
               Watch* watch) {
    positions_.clear(), cell_.clear(), lists_.clear(), list_of_.clear(), count_.clear();
    first_.clear(), list_start_.clear(), out_rows_.clear();
    const Text* text = nullptr;
    int64_t begin = 0;
    for (const Row& row : rows) {
      const int64_t from = std::max(int64_t(0), row.at + 1 - window), base = row.text->cell;
      if (row.text != text) {
        text = row.text, begin = from;
        list_start_.push_back(int64_t(lists_.size()));
        for (int64_t at = begin; at < row.at; at++) lists_.push_back(int32_t(base + at % cells_));
      }
      lists_.push_back(int32_t(base + row.at % cells_));
      positions_.push_back(int32_t(row.at)), cell_.push_back(lists_.back());
      list_of_.push_back(int32_t(list_start_.size() - 1));
      first_.push_back(from - begin), count_.push_back(row.at + 1 - begin);
      out_rows_.push_back(int64_t(out_rows_.size()));
    }
    const int64_t n = int64_t(rows.size()), n_lists = int64_t(list_start_.size());
    list_start_.push_back(int64_t(lists_.size()));
    static constexpr int64_t last = 1;  // what follows the layer, which is number 0
    MicroBatch batch;
    batch.tokens = n, batch.embeddings = inputs(pool, rows), batch.stride = layer_->stride();
    batch.positions = positions_.data(), batch.keys_only = keys_only;
    batch.groups[0] = {cell_.data(),  lists_.data(), list_start_.data(), n_lists, list_of_.data(),
                       count_.data(), nullptr,       first_.data()};
    if (!keys_only) {
      grow(given_, n * layer_->shape().n_embd()), grow(logits_rows_, n * layer_->n_out());
      batch.out_rows = out_rows_.data(), batch.n_out = n, batch.logits = logits_rows_.data();
      batch.taps = {&last, 1, given_.data()};
    }
    layer_->step().run(pool, batch, watch);
  }

  // The next guess after row i of the logits, if there is to be one after it; -1: there is not.
  int64_t draw(Text& text, int64_t i) {
    const float* row = &logits_rows_[i * layer_->n_out()];
    for (size_t k = 0; k < ids_.size(); k++)
      if (ids_[k] < int64_t(logits_.size())) logits_[ids_[k]] = row[k];
    const int64_t token = text.chain.sample(logits_);
    if (token < 0 || token >= int64_t(logits_.size())) return -1;
    float others = -std::numeric_limits<float>::infinity();
    for (size_t k = 0; k < ids_.size(); k++)
      if (ids_[k] != token) others = std::max(others, row[k]);
    const float lead = logits_[token] - others;
    const int64_t kind =
        std::count_if(std::begin(leads), std::end(leads), [&](float each) { return lead >= each; });
    text.sure *= text.rates[kind];
    if (text.sure < text.least) return -1;
    text.made.first.push_back(token), text.made.second.push_back(kind);
    return --text.most > 0 ? token : -1;
  }

  // y = x normalised; without weights y = x.
  void normalise(const float* x, const float* weight, int64_t n, float* y) const {
    if (weight)
      rms_norm_(x, weight, n, eps_, y);
    else
      std::copy_n(x, n, y);
  }

  nb::object step_;
  BoundDecoderStep* layer_;
  Kept kept_;
  Weights embedding_, fuse_, join_;
  const float *embedding_norm_, *hidden_norm_, *fuse_norm_, *follow_norm_;
  float eps_, scale_;
  int64_t seen_, cells_;
  bool normed_;
  std::vector<int64_t> ids_;   // the model's token of each of the head's
  std::vector<float> logits_;  // of the model's tokens
  std::vector<float> seen_rows_, hidden_, states_, inputs_, joined_, given_, logits_rows_;
  std::vector<int32_t> positions_, lists_, list_of_;
  std::vector<int64_t> cell_, list_start_, count_, first_, out_rows_;
};

ALEATOR_BIND(draft_head) {
  nb::class_<BoundDraftHead>(m, "DraftHead", "Guesses the next tokens of texts.")
      .def(nb::init<nb::object, nb::object, int64_t>(), "step"_a, "parts"_a, "places"_a,
           "step: a DecoderStep of one layer with attention, whose cells are shared out among so "
           "many places of texts. parts: what DraftHead.parts (models/draft_head.py) says. "
           "ValueError when sizes disagree.")
      .def("guess", &BoundDraftHead::guess, "pool"_a, "texts"_a, "window"_a,
           "For each text its guesses and their kinds. A text is its place; the position of its "
           "first row, before which its cells have all rows; hidden states [n, layers, n_embd] in "
           "pieces, and the tokens that follow them; how many guesses at most; how probable it "
           "must at least be that all are right, by the rates of the kinds, which follow; and the "
           "chain, of which a copy draws. A row sees the last `window` ones.");
  m.attr("DRAFT_KINDS") = BoundDraftHead::kinds;
}

}  // namespace aleator
