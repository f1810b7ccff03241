// Text to token ids by merging neighbours, best first: byte-level BPE by the rank of a merge,
// SentencePiece by the score of the token that two pieces make.  Tokens stay where their file has
// them.
#include <algorithm>
#include <bit>
#include <stdexcept>

#include "bind.hpp"
#include "errors.hpp"
#include "models/gguf_strings.hpp"

namespace aleator {
namespace {

constexpr uint64_t kLongest = uint64_t{1} << 31;  // bytes of one text: places have 32 bits

// A piece of the text; length 0: it went into the one before it.
struct Piece {
  int32_t before, after;
  uint32_t start, length;
  int32_t token;  // -1: none
};

// Two neighbours that make a token, as they were when they were found.
struct Pair {
  uint32_t key;  // the lowest is merged first
  int32_t left, right;
  uint32_t length;
  int32_t token;
};

// Of pairs with equal keys the leftmost is merged first, as llama.cpp does.
struct Later {
  bool operator()(const Pair& a, const Pair& b) const {
    return a.key != b.key ? a.key > b.key : a.left > b.left;
  }
};

// Merges the pieces of one word; `join(left, right, pair)` sets the key and the token, or says that
// there is none.
class Merging {
 public:
  void clear() { pieces_.clear(); }

  void add(uint32_t start, uint32_t length, int32_t token) {
    const auto at = int32_t(pieces_.size());
    if (at > 0) pieces_.back().after = at;
    pieces_.push_back({at - 1, -1, start, length, token});
  }

  template <class Join>
  void run(const Join& join) {
    heap_.clear();
    for (size_t i = 1; i < pieces_.size(); ++i) find(int32_t(i - 1), int32_t(i), join);
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), Later());
      const Pair pair = heap_.back();
      heap_.pop_back();
      Piece& left = pieces_[pair.left];
      Piece& right = pieces_[pair.right];
      // One of them went into another piece since, or has grown.
      if (left.length == 0 || right.length == 0 || left.length + right.length != pair.length)
        continue;
      left.length = pair.length;
      left.token = pair.token;
      left.after = right.after;
      right.length = 0;
      if (left.after >= 0) {
        pieces_[left.after].before = pair.left;
        find(pair.left, left.after, join);
      }
      if (left.before >= 0) find(left.before, pair.left, join);
    }
  }

  template <class Visit>
  void each(const Visit& visit) const {
    for (const Piece& piece : pieces_)
      if (piece.length) visit(piece);
  }

 private:
  template <class Join>
  void find(int32_t left, int32_t right, const Join& join) {
    const Piece &a = pieces_[left], &b = pieces_[right];
    Pair pair{0, left, right, a.length + b.length, -1};
    if (!join(a, b, pair)) return;
    heap_.push_back(pair);
    std::push_heap(heap_.begin(), heap_.end(), Later());
  }

  std::vector<Piece> pieces_;
  std::vector<Pair> heap_;
};

std::string_view view(nb::handle text) {
  Py_ssize_t length = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &length);
  if (!bytes) throw nb::python_error();
  if (uint64_t(length) >= kLongest) throw std::length_error("a text of 2 GiB or more");
  return {bytes, size_t(length)};
}

// Adds the characters of a text from `at` to `end`.
void add_characters(Merging& merging, std::string_view text, size_t at, size_t end,
                    const StringArray& tokens) {
  while (at < end) {
    const auto lead = uint8_t(text[at]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    const std::string_view character = text.substr(at, std::min(length, end - at));
    merging.add(uint32_t(at), uint32_t(character.size()), int32_t(tokens.find(character)));
    at += character.size();
  }
}

class BytePairEncoder {
 public:
  BytePairEncoder(const StringArray& tokens, const StringArray& merges,
                  const std::vector<std::string>& byte_texts, bool whole_words, bool characters)
      : tokens_(tokens),
        byte_texts_(byte_texts),
        whole_words_(whole_words),
        characters_(characters) {
    if (byte_texts.size() != 256) throw nb::value_error("byte_texts must have 256 elements");
    for (const std::string& text : byte_texts) bytes_.push_back(int32_t(tokens_.find(text)));
    uint64_t n = 16;
    while (n < 2 * merges.size()) n *= 2;
    slots_.assign(n, 0);
    merges_.reserve(merges.size());
    std::string joined;
    for (uint64_t i = 0; i < merges.size(); ++i) {
      const std::string_view merge = merges[i];
      const size_t space = merge.find(' ');
      bad_merge_ = int64_t(i);
      if (space == merge.npos) return;
      const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
      joined.assign(left).append(right);
      const Merge found{int32_t(tokens_.find(left)), int32_t(tokens_.find(right)),
                        int32_t(tokens_.find(joined))};
      if (found.left < 0 || found.right < 0 || found.joined < 0) return;
      // llama.cpp takes the first of merges that occur twice.
      uint32_t& slot = slots_[place(found.left, found.right)];
      if (!slot) slot = uint32_t(i + 1);
      merges_.push_back(found);
    }
    bad_merge_ = -1;
  }

  int64_t bad_merge() const { return bad_merge_; }

  std::vector<int32_t> encode(const nb::list& words) const {
    std::vector<std::string_view> views;
    views.reserve(words.size());
    for (const nb::handle word : words) views.push_back(view(word));
    std::vector<int32_t> ids;
    const nb::gil_scoped_release released;
    Merging merging;
    std::string text;
    const auto is_token = [&](std::string_view whole) {
      const int64_t id = tokens_.find(whole);
      if (id >= 0) ids.push_back(int32_t(id));
      return id >= 0;
    };
    for (const std::string_view word : views) {
      if (characters_ && word.find_first_not_of('\n') == word.npos && is_token(word)) continue;
      if (whole_words_) {
        text.clear();
        for (const char byte : word) text += byte_texts_[uint8_t(byte)];
        if (is_token(text)) continue;
      }
      merging.clear();
      if (characters_)
        add_characters(merging, word, 0, word.size(), tokens_);
      else
        for (size_t i = 0; i < word.size(); ++i)
          merging.add(uint32_t(i), 1, bytes_[uint8_t(word[i])]);
      merging.run([this](const Piece& left, const Piece& right, Pair& pair) {
        const uint32_t number = slots_[place(left.token, right.token)];
        if (!number) return false;
        pair.key = number - 1;
        pair.token = merges_[number - 1].joined;
        return true;
      });
      merging.each([&](const Piece& piece) {
        if (piece.token >= 0) return ids.push_back(piece.token);
        for (uint32_t i = 0; i < piece.length; ++i) {
          const int32_t byte = bytes_[uint8_t(word[piece.start + i])];
          if (byte < 0) refuse("a byte without a token");
          ids.push_back(byte);
        }
      });
    }
    return ids;
  }

 private:
  struct Merge {
    int32_t left, right, joined;
  };

  // The slot of that pair, or the free one where it belongs.
  uint64_t place(int32_t left, int32_t right) const {
    const uint64_t mask = slots_.size() - 1;
    const uint64_t mixed = (uint64_t(uint32_t(left)) << 32 | uint32_t(right)) * 0x9E3779B97F4A7C15u;
    uint64_t at = (mixed ^ mixed >> 32) & mask;
    while (slots_[at]) {
      const Merge& merge = merges_[slots_[at] - 1];
      if (merge.left == left && merge.right == right) break;
      at = (at + 1) & mask;
    }
    return at;
  }

  const StringArray& tokens_;
  std::vector<std::string> byte_texts_;
  bool whole_words_, characters_;
  std::vector<int32_t> bytes_;  // the token of each byte
  std::vector<Merge> merges_;
  std::vector<uint32_t> slots_;  // number of a merge + 1; 0: free
  int64_t bad_merge_ = -1;
};

class SentencePieceEncoder {
 public:
  using Scores = aleator::Array<const float>;

  SentencePieceEncoder(const StringArray& tokens, Scores scores,
                       const std::vector<std::string>& byte_texts, std::optional<int32_t> unknown,
                       std::string space)
      : tokens_(tokens),
        scores_(std::move(scores)),
        unknown_(unknown.value_or(-1)),
        space_(std::move(space)) {
    if (byte_texts.size() != 256) throw nb::value_error("byte_texts must have 256 elements");
    if (scores_.size() != tokens_.size()) throw nb::value_error("as many scores as tokens");
    for (const std::string& text : byte_texts) bytes_.push_back(int32_t(tokens_.find(text)));
    for (uint64_t i = 0; i < tokens_.size() && words_apart_; ++i)
      words_apart_ = next_word(tokens_[i], 0) == tokens_[i].size();
  }

  std::vector<int32_t> encode(const nb::str& given) const {
    const std::string_view text = view(given);
    std::vector<int32_t> ids;
    const nb::gil_scoped_release released;
    Merging merging;
    bool after_unknown = false;  // neighbours without tokens are one unknown token
    for (size_t start = 0; start < text.size();) {
      const size_t end = words_apart_ ? next_word(text, start) : text.size();
      merging.clear();
      add_characters(merging, text, start, end, tokens_);
      start = end;
      merging.run([&](const Piece& left, const Piece& right, Pair& pair) {
        pair.token = int32_t(tokens_.find(text.substr(left.start, left.length + right.length)));
        if (pair.token < 0) return false;
        pair.key = key_of(scores_.data()[pair.token]);
        return true;
      });
      merging.each([&](const Piece& piece) {
        if (piece.token >= 0) {
          ids.push_back(piece.token);
          after_unknown = false;
          return;
        }
        const std::string_view bytes = text.substr(piece.start, piece.length);
        const bool known = std::all_of(bytes.begin(), bytes.end(),
                                       [&](char byte) { return bytes_[uint8_t(byte)] >= 0; });
        if (known)
          for (const char byte : bytes) ids.push_back(bytes_[uint8_t(byte)]);
        else if (!after_unknown)
          ids.push_back(unknown_);
        after_unknown = !known;
      });
    }
    return ids;
  }

 private:
  // Where the next word begins: at a space after something else.
  size_t next_word(std::string_view text, size_t at) const {
    while (text.substr(at, space_.size()) == space_) at += space_.size();
    return std::min(text.find(space_, at), text.size());
  }

  // Falls as the score rises; 0 and -0 are equal.
  static uint32_t key_of(float score) {
    const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);
    return bits >> 31 ? bits : ~bits & 0x7FFFFFFFu;
  }

  const StringArray& tokens_;
  Scores scores_;
  int32_t unknown_;
  std::string space_;
  std::vector<int32_t> bytes_;  // the token of each byte
  bool words_apart_ = true;     // no token has a space after something else
};

}  // namespace
}  // namespace aleator

ALEATOR_BIND(merging) {
  using aleator::BytePairEncoder;
  using aleator::SentencePieceEncoder;
  nb::class_<BytePairEncoder>(
      m, "BytePairEncoder",
      "Byte-level BPE: `tokens` and `merges` are strings of a file, byte_texts the 256 texts of "
      "bytes; with whole_words a word that is a token is not merged. characters: what is merged "
      "first are characters, of which those without a token become bytes; a word of newlines that "
      "is a token is not merged.")
      .def(nb::init<const aleator::StringArray&, const aleator::StringArray&,
                    const std::vector<std::string>&, bool, bool>(),
           nb::keep_alive<1, 2>(), nb::call_guard<nb::gil_scoped_release>(), "tokens"_a, "merges"_a,
           "byte_texts"_a, "whole_words"_a, "characters"_a = false)
      .def_prop_ro("bad_merge", &BytePairEncoder::bad_merge,
                   "Number of the first merge that is not two tokens with a space between whose "
                   "join is a token; -1: all are.")
      .def("encode", &BytePairEncoder::encode, "words"_a,
           "Token ids of words, which are not merged across.");
  nb::class_<SentencePieceEncoder>(
      m, "SentencePieceEncoder",
      "SentencePiece's BPE: of neighbours that make a token, the best-scored first; what has no "
      "token becomes bytes, or `unknown` where one of these has none.")
      .def(nb::init<const aleator::StringArray&, SentencePieceEncoder::Scores,
                    const std::vector<std::string>&, std::optional<int32_t>, std::string>(),
           nb::keep_alive<1, 2>(), "tokens"_a, "scores"_a, "byte_texts"_a, "unknown"_a.none(),
           "space"_a)
      .def("encode", &SentencePieceEncoder::encode, "text"_a, "Token ids of a text.");
}
