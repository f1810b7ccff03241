// The regular expressions that start a lazy grammar: ECMAScript's notation over bytes, as
// std::regex has it, matched by threads in lockstep, so time and memory are bounded where
// std::regex recurses.
//
// Not there: back references.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace aleator {

// What \w matches, and \b asks about.
inline bool is_word_byte(uint8_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

class TriggerPattern {
 public:
  // Throws ParameterError("trigger_patterns") with the place and the reason.
  explicit TriggerPattern(std::string_view pattern);

  // Where the grammar's text begins: at the first group that is not empty, else at the match.  A
  // pattern from ^ to $ is tried on the whole text first; then it is searched for.
  std::optional<size_t> find(std::string_view text);
  bool has_groups() const { return n_groups_ > 0; }

 private:
  friend class TriggerParser;
  enum class Op : uint8_t {
    byte_set,  // one byte of sets_[x]
    split,     // try x, then y
    jump,      // x
    save,      // slot x
    begin,     // ^
    end,       // $
    word,      // \b, or \B if x
    look,  // (?=...) or (?!...) if y: the program from the next instruction to the match before x
    match,
  };
  struct Instruction {
    Op op;
    uint32_t x = 0, y = 0;
  };
  using Slots = std::vector<size_t>;
  struct Threads {
    std::vector<uint32_t> at;
    std::vector<Slots> slots;
    std::vector<uint32_t> seen;  // the position + 1 at which an instruction was reached
  };

  bool holds(const Instruction& i, std::string_view text, size_t at) const;
  void follow(uint32_t pc, std::string_view text, size_t at, Slots& slots, Threads& threads,
              uint32_t mark) const;
  bool run(uint32_t start, std::string_view text, size_t at, bool anywhere, bool whole,
           Slots& slots) const;
  bool may_match(std::string_view text);
  bool reach(uint32_t pc, std::string_view text, size_t at);

  std::string pattern_;
  std::vector<Instruction> program_;
  std::vector<std::bitset<256>> sets_;
  uint32_t n_groups_ = 0;
  bool looks_ = false;
  // How far a growing text was read, and by which instructions: without groups or looking ahead.
  std::string read_;
  bool found_ = false;
  std::vector<uint32_t> now_, next_, consuming_;
  std::vector<uint64_t> seen_;
  uint64_t mark_ = 0;
};

}  // namespace aleator
