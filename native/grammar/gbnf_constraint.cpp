#include "grammar/gbnf_constraint.hpp"

#include <algorithm>
#include <cstring>

#include "errors.hpp"

namespace aleator {
namespace {

constexpr size_t kMaskCacheBytes = size_t{16} << 20;
constexpr size_t kMostForcedBytes = 4096;
constexpr uint64_t kMostForcedWork = 200'000;

// The code points that a sequence may become of which n_remain bytes are missing.
std::pair<uint32_t, uint32_t> completions(PartialUtf8 p) {
  const uint32_t low = p.value << (6 * p.n_remain);
  const uint32_t shortest = p.n_remain == 1 ? 0x80 : p.n_remain == 2 ? 0x800 : 0x10000;
  const uint32_t high = low | ((uint32_t{1} << (6 * p.n_remain)) - 1);
  return {std::max(low, shortest), std::min(high, 0x10FFFFu)};
}

void set_bit(uint32_t* words, int32_t token) {
  words[uint32_t(token) / 32] |= 1u << (uint32_t(token) % 32);
}

}  // namespace

GbnfConstraint::GbnfConstraint(std::shared_ptr<const GbnfProgram> program,
                               std::vector<TriggerPattern> trigger_patterns,
                               std::vector<int32_t> trigger_tokens)
    : program_(std::move(program)),
      stacks_(program_->grammar, program_->alphabet),
      trigger_patterns_(std::move(trigger_patterns)),
      trigger_tokens_(std::move(trigger_tokens)),
      path_(trie().depth() + 2) {
  for (const int32_t token : trigger_tokens_)
    if (token < 0 || token >= n_vocab())
      throw ParameterError("trigger_tokens", "trigger token ", token,
                           " is outside the vocabulary of ", n_vocab(), " tokens");
  stacks_.begin_operation();
  states_.push_back({stacks_.start(), {}, !trigger_patterns_.empty() || !trigger_tokens_.empty()});
}

std::unique_ptr<Constraint> GbnfConstraint::clone() const {
  auto copy = std::make_unique<GbnfConstraint>(*this);
  copy->mask_of_.clear();
  for (auto it = copy->masks_.begin(); it != copy->masks_.end(); ++it)
    copy->mask_of_.emplace((*it)->key, it);
  return copy;
}

// Before any work: memory is tidied here and nowhere else, because that renumbers sets.
void GbnfConstraint::begin() {
  if (stacks_.untidy()) {
    std::vector<int32_t*> live;
    for (State& s : states_) live.push_back(&s.set);
    stacks_.tidy(live);
    masks_.clear();
    mask_of_.clear();
  }
  stacks_.begin_operation();
}

void GbnfConstraint::check_token(int32_t token) const {
  if (token < 0 || token >= n_vocab())
    throw ParameterError("token", "token ", token, " is outside the vocabulary of ", n_vocab(),
                         " tokens");
}

bool GbnfConstraint::may_end_in(int32_t set, PartialUtf8 partial) const {
  const Gbnf& g = program_->grammar;
  for (size_t i = 0; i < stacks_.n_entries(set); ++i) {
    const auto& element = g.elements[stacks_.entry(set, i).element];
    if (element.kind == Gbnf::Kind::character &&
        g.sets[element.value].may_become(partial.value, partial.n_remain))
      return true;
  }
  return false;
}

GbnfConstraint::Outcome GbnfConstraint::outcome(const State& from, int32_t token,
                                                std::string_view text) {
  const Gbnf& g = program_->grammar;
  const auto kind = [&](StackSets::Entry e) { return g.elements[e.element]; };
  const auto takes = [&](const Gbnf::Element& e) {
    return (e.kind == Gbnf::Kind::token && e.value == token) ||
           (e.kind == Gbnf::Kind::not_token && e.value != token);
  };
  const auto after = [&](int32_t set, uint32_t code_point) {
    return stacks_.after(set, program_->alphabet.letter(code_point));
  };
  Outcome out;
  code_points_.clear();
  out.partial = decode_utf8(text, from.partial, code_points_);

  // The mask: stops at a code point 0, and at a token terminal anywhere before the end.
  const auto stop = std::find(code_points_.begin(), code_points_.end(), 0u);
  int32_t set = from.set;
  for (auto c = code_points_.begin(); c != stop && set != StackSets::kNone; ++c) {
    if (stacks_.tokens(set))
      for (size_t i = 0; i < stacks_.n_entries(set); ++i)
        if (takes(kind(stacks_.entry(set, i)))) out.tops.push_back(stacks_.entry(set, i));
    set = after(set, *c);
  }
  out.allowed = !out.tops.empty();
  if (set != StackSets::kNone)
    out.allowed |=
        out.partial.n_remain == 0 || (out.partial.n_remain > 0 && may_end_in(set, out.partial));

  // The text: characters all the way, or one token terminal at the beginning.
  std::vector<StackSets::Entry> characters, tokens;
  for (size_t i = 0; i < stacks_.n_entries(from.set); ++i) {
    const auto e = stacks_.entry(from.set, i);
    if (kind(e).kind == Gbnf::Kind::character)
      characters.push_back(e);
    else if (takes(kind(e)))
      tokens.push_back(e);
  }
  int32_t by_text = stacks_.of(false, std::move(characters));
  for (const uint32_t c : code_points_) by_text = after(by_text, c);
  out.set = stacks_.both(by_text, tokens.empty() ? StackSets::kNone : stacks_.past(tokens));
  if (out.partial.n_remain < 0) out.partial = {};
  return out;
}

GbnfConstraint::State GbnfConstraint::next(const State& from, int32_t token) {
  const auto refuse = [&] {
    throw ConstraintError(token, "token ", token,
                          " is not allowed by the grammar here; mask() says which are");
  };
  if (trie().is_end(token)) {
    if (!stacks_.empty(from.set)) refuse();
    return from;
  }
  const std::string& text = trie().piece(token);
  if (text.empty() || text[0] == '\0') refuse();
  Outcome out = outcome(from, token, text);
  if (!out.allowed) refuse();
  // llama.cpp's mask lets a token pass that begins in characters and meets a token terminal half
  // way, and then fails on it; here the terminal takes it.
  if (out.set == StackSets::kNone) out.set = stacks_.past(out.tops);
  return {out.set == StackSets::kNone ? from.set : out.set, out.partial};
}

// A token that the grammar did not choose: llama.cpp asks no mask about it.
GbnfConstraint::State GbnfConstraint::replay(State at, int32_t token, std::string_view text) {
  const Outcome out = outcome(at, token, text);
  return {out.set, out.partial};
}

GbnfConstraint::State GbnfConstraint::wait(int32_t token) {
  const State start = {states_.front().set, {}};
  const auto refuse = [&](const std::string& what) {
    throw ConstraintError(token, "token ", token, " starts the grammar, which does not allow ",
                          what);
  };
  const std::string& piece = trie().piece(token);
  if (std::find(trigger_tokens_.begin(), trigger_tokens_.end(), token) != trigger_tokens_.end()) {
    const State at = replay(start, token, piece);
    if (at.set == StackSets::kNone) refuse("that token to begin with");
    return at;
  }
  const std::string text = text_ + piece;
  for (TriggerPattern& pattern : trigger_patterns_) {
    const auto from = pattern.find(text);
    if (!from) continue;
    State at = start;
    size_t begin = 0;
    const auto feed = [&](int32_t t, size_t end) {
      if (end > *from && at.set != StackSets::kNone)
        at = replay(
            at, t,
            std::string_view(text).substr(std::max(begin, *from), end - std::max(begin, *from)));
      begin = end;
    };
    for (const auto& [t, end] : waited_) feed(t, end);
    feed(token, text.size());
    if (at.set == StackSets::kNone)
      refuse(message("the text that its trigger pattern hands over, ", text.substr(*from),
                     pattern.has_groups()
                         ? " (from the first group with any text in it, else all that matched)"
                         : " (all that matched: a group would say where to begin)"));
    return at;
  }
  text_ = text;
  waited_.emplace_back(token, text_.size());
  return {start.set, {}, true};
}

bool GbnfConstraint::allows(int32_t token) {
  check_token(token);
  if (waiting()) return true;
  begin();
  if (trie().is_end(token)) return stacks_.empty(state().set);
  const std::string& text = trie().piece(token);
  return !text.empty() && text[0] != '\0' && outcome(state(), token, text).allowed;
}

void GbnfConstraint::accept(int32_t token) {
  check_token(token);
  begin();
  states_.push_back(waiting() ? wait(token) : next(state(), token));
}

void GbnfConstraint::rollback(int64_t n) {
  if (n < 0 || n >= int64_t(states_.size()))
    throw ParameterError("n", "cannot roll back ", n, " tokens: ", states_.size() - 1,
                         " were accepted");
  states_.erase(states_.end() - n, states_.end());
  if (!waiting()) return;
  waited_.erase(waited_.begin() + static_cast<std::ptrdiff_t>(states_.size() - 1), waited_.end());
  text_.resize(waited_.empty() ? 0 : waited_.back().second);
}

void GbnfConstraint::reset() { rollback(int64_t(states_.size()) - 1); }

void GbnfConstraint::mask(uint32_t* words) {
  if (waiting()) {
    std::fill(words, words + mask_words(n_vocab()), ~0u);
    if (n_vocab() % 32) words[n_vocab() / 32] = (1u << (n_vocab() % 32)) - 1;
    return;
  }
  begin();
  const PartialUtf8 p = state().partial;
  const uint64_t key = uint64_t(uint32_t(state().set)) << 32 | uint64_t(p.n_remain) << 28 | p.value;
  const size_t bytes = size_t(mask_words(n_vocab())) * sizeof(uint32_t);
  const auto found = mask_of_.find(key);
  if (found != mask_of_.end()) {
    masks_.splice(masks_.begin(), masks_, found->second);
  } else {
    auto fresh = std::make_shared<Mask>(Mask{key, std::vector<uint32_t>(bytes / sizeof(uint32_t))});
    compute_mask(fresh->words.data());
    if ((masks_.size() + 1) * bytes > kMaskCacheBytes && !masks_.empty()) {
      mask_of_.erase(masks_.back()->key);
      masks_.pop_back();
    }
    masks_.push_front(std::move(fresh));
    mask_of_.emplace(key, masks_.begin());
  }
  std::memcpy(words, masks_.front()->words.data(), bytes);
}

// Tokens that token terminals on top of `set` take where their text has come to `node`: those with
// a whole character still to come.
void GbnfConstraint::add_tokens(uint32_t node, int32_t set) {
  const auto& nodes = trie().nodes();
  uint32_t child = node + 1;
  const uint32_t first = nodes[child].first_token;
  while (child < nodes[node].end && !(nodes[child].label & TokenTrie::kTail))
    child = nodes[child].end;
  const uint32_t end = nodes[child].first_token;
  for (size_t i = 0; i < stacks_.n_entries(set); ++i) {
    const auto& e = program_->grammar.elements[stacks_.entry(set, i).element];
    if (e.kind != Gbnf::Kind::token && e.kind != Gbnf::Kind::not_token) continue;
    const int32_t place = e.value < 0 ? -1 : trie().place(e.value);
    const bool inside = place >= 0 && uint32_t(place) >= first && uint32_t(place) < end;
    const auto at = uint32_t(place);
    if (e.kind == Gbnf::Kind::token) {
      if (inside) by_token_.emplace_back(at, at + 1);
    } else if (inside) {
      by_token_.emplace_back(first, at);
      by_token_.emplace_back(at + 1, end);
    } else {
      by_token_.emplace_back(first, end);
    }
  }
}

// Nodes from `node` up to `end`, whose parents' sets are in path_.  Sets the bits of allowed
// tokens, or with kClear clears those of the others.
template <bool kClear>
void GbnfConstraint::walk(uint32_t node, uint32_t end, uint32_t* words) {
  const auto* nodes = trie().nodes().data();
  const auto* order = trie().order().data();
  const Alphabet& alphabet = program_->alphabet;
  const auto change = [&](uint32_t first, uint32_t last) {
    for (uint32_t i = first; i < last; ++i) {
      const auto token = uint32_t(order[i]);
      if constexpr (kClear)
        words[token / 32] &= ~(1u << (token % 32));
      else
        words[token / 32] |= 1u << (token % 32);
    }
  };
  while (node < end) {
    const auto& at = nodes[node];
    const int32_t set = stacks_.after(path_[at.depth - 1], alphabet.letter_of_node(node));
    if (set == StackSets::kNone) {
      if (kClear) change(at.first_token, nodes[at.end].first_token);
      node = at.end;
      continue;
    }
    const bool whole = stacks_.all_allowed(set, alphabet.below(node), at.height);
    if (whole) {
      if (!kClear) change(at.first_token, nodes[at.end].first_token);
      node = at.end;
      continue;
    }
    if (!kClear) change(at.first_token, nodes[node + 1].first_token);
    if (stacks_.tokens(set)) add_tokens(node, set);
    path_[at.depth] = set;
    ++node;
  }
}

void GbnfConstraint::compute_mask(uint32_t* words) {
  const State from = state();
  const auto n_words = size_t(mask_words(n_vocab()));
  const auto& order = trie().order();
  by_token_.clear();
  if (from.partial.n_remain > 0) {
    std::fill(words, words + n_words, 0u);
    for (const int32_t token : trie().continuations())
      if (outcome(from, token, trie().piece(token)).allowed) set_bit(words, token);
  } else {
    const auto& nodes = trie().nodes();
    const auto& by_letter = program_->alphabet.root_children();
    path_[0] = from.set;
    if (stacks_.tokens(from.set)) add_tokens(0, from.set);
    size_t n_open = 0;
    for (int32_t letter = 0; letter < program_->alphabet.size(); ++letter)
      if (stacks_.after(from.set, letter) != StackSets::kNone) n_open += by_letter[letter].n_tokens;
    if (2 * n_open > order.size()) {
      std::copy(trie().text_tokens().begin(), trie().text_tokens().end(), words);
      walk<true>(1, trie().n_nodes(), words);
    } else {
      std::fill(words, words + n_words, 0u);
      for (uint32_t i = 0; i < nodes[1].first_token; ++i) set_bit(words, order[i]);
      for (int32_t letter = 0; letter < program_->alphabet.size(); ++letter) {
        if (stacks_.after(from.set, letter) == StackSets::kNone) continue;
        for (const uint32_t node : by_letter[letter].nodes)
          walk<false>(node, nodes[node].end, words);
      }
    }
    for (const auto& [first, end] : by_token_)
      for (uint32_t i = first; i < end; ++i) set_bit(words, order[i]);
  }
  if (stacks_.empty(from.set))
    for (const int32_t token : trie().end_of_generation()) set_bit(words, token);
}

// The one code point that all tops want, if there is one.
std::optional<uint32_t> GbnfConstraint::only_character(int32_t set, PartialUtf8 partial) const {
  const Gbnf& g = program_->grammar;
  if (stacks_.empty(set) || stacks_.tokens(set)) return std::nullopt;
  auto [low, high] = partial.n_remain > 0 ? completions(partial) : std::pair(1u, 0x10FFFFu);
  std::optional<uint32_t> only;
  for (size_t i = 0; i < stacks_.n_entries(set); ++i) {
    const auto& element = g.elements[stacks_.entry(set, i).element];
    const CharacterSet& characters = g.sets[element.value];
    if (characters.negated) return std::nullopt;  // leaves more than one, whatever it names
    for (const auto& r : characters.ranges) {
      const uint32_t first = std::max(r.first, low), last = std::min(r.last, high);
      if (first > last) continue;
      if (first != last || (only && *only != first)) return std::nullopt;
      only = first;
    }
  }
  if (only && *only >= 0xD800 && *only < 0xE000) return std::nullopt;  // not UTF-8
  return only;
}

std::string GbnfConstraint::jump_forward() {
  if (waiting()) return {};
  begin();
  std::string text;
  State at = state();
  while (text.size() < kMostForcedBytes && stacks_.work_done() < kMostForcedWork) {
    const auto c = only_character(at.set, at.partial);
    if (!c) break;
    std::string bytes;
    append_utf8(*c, bytes);
    const auto missing = size_t(std::max(at.partial.n_remain, 0));
    text += missing ? bytes.substr(bytes.size() - std::min(bytes.size(), missing)) : bytes;
    at = {stacks_.after(at.set, program_->alphabet.letter(*c)), {}};
  }
  return text;
}

}  // namespace aleator
