// Contract: src/aleator/samplers/phases.py
#include <algorithm>
#include <array>

#include "bind.hpp"
#include "samplers/sampler.hpp"
#include "samplers/token_texts.hpp"

namespace aleator {

namespace {

// Where a text stands: a node for each beginning of a mark in each phase.
struct PhaseMarks {
  std::vector<std::array<int32_t, 256>> next;         // where a byte leads
  std::vector<int32_t> phase;                         // of each node
  std::vector<std::pair<int32_t, int32_t>> by_token;  // marks that are tokens: in which phase ...
  std::vector<int32_t> to;                            // ... and where they lead
  int32_t start;
  std::shared_ptr<const TokenTexts> texts;  // null: all marks are tokens

  int32_t after(int32_t node, int32_t token) const {
    const auto mark = std::find(by_token.begin(), by_token.end(), std::pair(phase[node], token));
    if (mark != by_token.end()) return to[mark - by_token.begin()];
    if (texts)
      for (const char byte : texts->text(token)) node = next[node][uint8_t(byte)];
    return node;
  }
};

class Phases : public Sampler {
 public:
  using Samplers = std::vector<std::shared_ptr<Sampler>>;

  Phases(std::vector<Samplers> chains, std::shared_ptr<const PhaseMarks> marks, bool own)
      : marks_(std::move(marks)), own_(own), now_(marks_->start) {
    for (Samplers& samplers : chains) phases_.push_back({std::move(samplers), {}});
    for (const int32_t phase : marks_->phase)
      if (phase < 0 || size_t(phase) >= phases_.size())
        throw ParameterError("phases", "a mark leads to a phase without a chain");
  }
  std::shared_ptr<Sampler> clone() const override {
    auto made = std::make_shared<Phases>(*this);
    for (Phase& phase : made->phases_)
      for (auto& sampler : phase.samplers) sampler = sampler->clone();
    return made;
  }

  void apply(Candidates& candidates, const Step& step) override {
    Phase& phase = phases_[present()];
    const Step seen{step.position, step.completion,
                    own_ && step.history ? &phase.heard : step.history};
    for (const auto& sampler : phase.samplers) sampler->apply(candidates, seen);
  }
  void accept(const History& h) override {
    const bool generated = h.generated.back();
    before_.push_back(now_);
    for_listeners(now_, generated, [&](Phase& phase) {
      if (own_) phase.heard.push(h.tokens.back(), generated);
      for (const auto& sampler : phase.samplers) sampler->accept(own_ ? phase.heard : h);
    });
    now_ = generated ? marks_->after(now_, h.tokens.back()) : marks_->start;
  }
  void unaccept(const History& h) override {
    now_ = before_.back();
    before_.pop_back();
    for_listeners(now_, h.generated.back(), [&](Phase& phase) {
      for (const auto& sampler : phase.samplers) sampler->unaccept(own_ ? phase.heard : h);
      if (own_) phase.heard.pop();
    });
  }
  void reset() override {
    now_ = marks_->start;
    before_.clear();
    for (Phase& phase : phases_) {
      phase.heard = {};
      for (const auto& sampler : phase.samplers) sampler->reset();
    }
  }
  void restart() override {
    now_ = marks_->start;
    for (Phase& phase : phases_)
      for (const auto& sampler : phase.samplers) sampler->restart();
  }
  void write_state(StateWriter& out) const override {
    out.put_all(before_);
    out.put(now_);
    for (const Phase& phase : phases_) write_states(out, phase.samplers);
  }
  void read_state(StateReader& in, const History& history) override {
    before_ = in.get_all<int32_t>(history.tokens.size());
    now_ = in.get<int32_t>();
    const auto nodes = int32_t(marks_->phase.size());
    const auto sound = [&](int32_t node) { return 0 <= node && node < nodes; };
    if (!sound(now_) || !std::all_of(before_.begin(), before_.end(), sound))
      in.refuse("a token was drawn in a phase that there is not");
    if (own_)
      for (size_t i = 0; i < before_.size(); ++i)
        for_listeners(before_[i], history.generated[i], [&](Phase& phase) {
          phase.heard.push(history.tokens[i], history.generated[i]);
        });
    for (const Phase& phase : phases_)
      read_states(in, phase.samplers, own_ ? phase.heard : history);
  }
  Samplers acting() const override {
    Samplers copies;
    for (const auto& sampler : phases_[present()].samplers) copies.push_back(sampler->clone());
    return copies;
  }
  const History& heard(const History& all) const override {
    return own_ ? phases_[present()].heard : all;
  }

  int32_t present() const { return marks_->phase[now_]; }
  std::vector<int32_t> before() const {  // the phase before each accepted token
    std::vector<int32_t> found;
    for (const int32_t node : before_) found.push_back(marks_->phase[node]);
    return found;
  }

 private:
  struct Phase {
    Samplers samplers;
    History heard;  // where each phase has a history of its own
  };

  // All phases hear a prompt; of a text, with histories of their own, the phase that drew the
  // token.
  template <typename Do>
  void for_listeners(int32_t node, bool generated, Do what) {
    if (own_ && generated) return what(phases_[marks_->phase[node]]);
    for (Phase& phase : phases_) what(phase);
  }

  std::vector<Phase> phases_;
  std::shared_ptr<const PhaseMarks> marks_;
  bool own_;
  int32_t now_;                  // a node
  std::vector<int32_t> before_;  // the node before each accepted token
};

std::shared_ptr<PhaseMarks> marks_of(const Array<const int32_t, 2>& next,
                                     const Array<const int32_t>& phase,
                                     const Array<const int32_t, 2>& tokens, int32_t start,
                                     std::shared_ptr<const TokenTexts> texts) {
  auto made = std::make_shared<PhaseMarks>();
  const auto nodes = int32_t(phase.size());
  const auto node = [&](int32_t at) {
    if (at < 0 || at >= nodes) throw ParameterError("phases", "a mark leads to no node");
    return at;
  };
  if (next.shape(0) != phase.size() || next.shape(1) != 256 || tokens.shape(1) != 3)
    throw ParameterError("phases", "the table of marks has another shape");
  made->next.resize(phase.size());
  for (size_t i = 0; i < next.size(); ++i) made->next[i / 256][i % 256] = node(next.data()[i]);
  made->phase.assign(phase.data(), phase.data() + phase.size());
  for (size_t i = 0; i < tokens.shape(0); ++i) {
    const int32_t* each = tokens.data() + 3 * i;
    made->by_token.emplace_back(each[0], each[1]);
    made->to.push_back(node(each[2]));
  }
  made->start = node(start);
  made->texts = std::move(texts);
  return made;
}

}  // namespace

ALEATOR_BIND(sampler_phases) {
  nb::class_<TokenTexts>(m, "TokenTexts", "The texts of a vocabulary's tokens.")
      .def(nb::init<nb::bytes, Array<const int64_t>>(), "texts"_a, "ends"_a.noconvert());
  nb::class_<PhaseMarks>(m, "PhaseMarks", "What ends one phase of a text and begins another.")
      .def(nb::new_(&marks_of), "next"_a.noconvert(), "phase"_a.noconvert(), "tokens"_a.noconvert(),
           "start"_a, "texts"_a.none());
  nb::class_<Phases, Sampler>(m, "Phases")
      .def(nb::init<std::vector<Phases::Samplers>, std::shared_ptr<const PhaseMarks>, bool>(),
           "chains"_a, "marks"_a, "own"_a)
      .def_prop_ro("present", &Phases::present, "The phase that draws the next token.")
      .def_prop_ro("before", &Phases::before, "For each accepted token the phase before it.");
}

}  // namespace aleator
