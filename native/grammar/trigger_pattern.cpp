// Trigger patterns: matching, by threads in lockstep.
#include "grammar/trigger_pattern.hpp"

#include <limits>

#include "errors.hpp"

namespace aleator {
namespace {

constexpr size_t kUnset = std::numeric_limits<size_t>::max();

}  // namespace

bool TriggerPattern::holds(const Instruction& i, std::string_view text, size_t at) const {
  const bool before = at > 0 && is_word_byte(uint8_t(text[at - 1]));
  const bool behind = at < text.size() && is_word_byte(uint8_t(text[at]));
  switch (i.op) {
    case Op::begin:
      return at == 0;
    case Op::end:
      return at == text.size();
    default:
      return (before != behind) == (i.x == 0);
  }
}

// Adds the threads that `pc` leads to without a byte, in order of preference.
void TriggerPattern::follow(uint32_t pc, std::string_view text, size_t at, Slots& slots,
                            Threads& threads, uint32_t mark) const {
  for (;;) {
    if (threads.seen[pc] == mark) return;
    threads.seen[pc] = mark;
    const Instruction& i = program_[pc];
    switch (i.op) {
      case Op::byte_set:
      case Op::match:
        threads.at.push_back(pc);
        threads.slots.push_back(slots);
        return;
      case Op::jump:
        pc = i.x;
        break;
      case Op::split:
        follow(i.x, text, at, slots, threads, mark);
        pc = i.y;
        break;
      case Op::save: {
        const size_t old = slots[i.x];
        slots[i.x] = at;
        follow(pc + 1, text, at, slots, threads, mark);
        slots[i.x] = old;
        return;
      }
      case Op::look: {
        Slots inner = slots;
        const bool found = run(pc + 1, text, at, false, false, inner);
        if (found == (i.y != 0)) return;
        if (found) {
          follow(i.x, text, at, inner, threads, mark);
          return;
        }
        pc = i.x;
        break;
      }
      default:
        if (!holds(i, text, at)) return;
        ++pc;
    }
  }
}

// The first match in order of preference, from `at` or anywhere after it, to the end or anywhere.
bool TriggerPattern::run(uint32_t start, std::string_view text, size_t at, bool anywhere,
                         bool whole, Slots& slots) const {
  Threads now, next;
  now.seen.assign(program_.size(), 0);
  next.seen.assign(program_.size(), 0);
  bool found = false;
  Slots result;
  uint32_t mark = 1;
  Slots fresh = slots;
  follow(start, text, at, fresh, now, mark);
  for (;; ++at) {
    ++mark;
    next.at.clear();
    next.slots.clear();
    for (size_t t = 0; t < now.at.size(); ++t) {
      const Instruction& i = program_[now.at[t]];
      if (i.op == Op::match) {
        if (whole && at < text.size()) continue;
        found = true;
        result = now.slots[t];
        break;  // the threads after it are less preferred
      }
      if (at < text.size() && sets_[i.x][uint8_t(text[at])])
        follow(now.at[t] + 1, text, at + 1, now.slots[t], next, mark);
    }
    if (at >= text.size()) break;
    if (anywhere && !found) follow(start, text, at + 1, fresh, next, mark);
    if (next.at.empty() && (found || !anywhere)) break;
    std::swap(now, next);
  }
  if (found) slots = std::move(result);
  return found;
}

// Whether `pc` reaches the match here; adds the instructions that want a byte to consuming_.
bool TriggerPattern::reach(uint32_t pc, std::string_view text, size_t at) {
  bool found = false;
  std::vector<uint32_t> todo{pc};
  while (!todo.empty()) {
    pc = todo.back();
    todo.pop_back();
    if (seen_[pc] == mark_) continue;
    seen_[pc] = mark_;
    const Instruction& i = program_[pc];
    switch (i.op) {
      case Op::byte_set:
        consuming_.push_back(pc);
        break;
      case Op::match:
        found = true;
        break;
      case Op::jump:
        todo.push_back(i.x);
        break;
      case Op::split:
        todo.push_back(i.x);
        todo.push_back(i.y);
        break;
      case Op::save:
        todo.push_back(pc + 1);
        break;
      default:
        if (holds(i, text, at)) todo.push_back(pc + 1);
    }
  }
  return found;
}

// Whether there is a match, reading only what is new since the last call.
bool TriggerPattern::may_match(std::string_view text) {
  if (looks_) return true;
  const auto begin_again = [&] {
    read_.clear();
    found_ = false;
    now_.assign(1, 0);
  };
  if (text.substr(0, read_.size()) != read_) begin_again();
  // The last position is looked at twice: as the end, and once it is known what follows.
  for (size_t at = read_.size(); !found_ && at < text.size(); ++at) {
    ++mark_;
    consuming_.clear();
    for (const uint32_t pc : now_) found_ |= reach(pc, text, at);
    next_.clear();
    for (const uint32_t pc : consuming_)
      if (sets_[program_[pc].x][uint8_t(text[at])]) next_.push_back(pc + 1);
    next_.push_back(0);
    std::swap(now_, next_);
    read_ += text[at];
  }
  if (found_) {
    begin_again();
    return true;
  }
  ++mark_;
  consuming_.clear();
  for (const uint32_t pc : now_)
    if (reach(pc, text, text.size())) return true;
  return false;
}

std::optional<size_t> TriggerPattern::find(std::string_view text) {
  if (!may_match(text)) return std::nullopt;
  const Slots none(2 * (size_t(n_groups_) + 1), kUnset);
  Slots slots = none;
  const bool framed = !pattern_.empty() && pattern_.front() == '^' && pattern_.back() == '$';
  if (!(framed && run(0, text, 0, false, true, slots))) {
    slots = none;
    if (!run(0, text, 0, true, false, slots)) return std::nullopt;
  }
  for (size_t group = 1; group <= n_groups_; ++group)
    if (slots[2 * group] != kUnset && slots[2 * group + 1] != kUnset &&
        slots[2 * group] < slots[2 * group + 1])
      return slots[2 * group];
  return slots[0];
}

}  // namespace aleator
