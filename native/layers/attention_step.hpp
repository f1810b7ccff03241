// Attention of a micro-batch's tokens, shared out among the threads of a pool: tokens that read one
// list of cells go together, so that its keys and values are read once for them.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "layers/angles.hpp"
#include "layers/attention.hpp"
#include "layers/lines.hpp"
#include "threads/pool.hpp"

namespace aleator {

// What T tokens store and see in one group's pool of cells.
struct Seen {
  const int64_t* cells = nullptr;  // [T] where each token's key and value go
  // Token t attends to cells seen_first[t] to seen_count[t] of list seen_list[t], and to the first
  // seen_sinks[t]; none give zeros.  Lists are in the order of positions.
  const int32_t* seen = nullptr;        // the lists one after the other
  const int64_t* list_start = nullptr;  // [n_lists + 1]
  int64_t n_lists = 0;
  const int32_t* seen_list = nullptr;    // [T]
  const int64_t* seen_count = nullptr;   // [T]
  const int32_t* seen_deltas = nullptr;  // how far each listed cell's stored key is behind its
                                         // position; none: nowhere
  const int64_t* seen_first = nullptr;   // [T]; none: 0
  const int64_t* seen_sinks = nullptr;   // [T]; none: 0
  // Where scores depend on distances: of the listed cells, and of the tokens [T].
  const int32_t *seen_positions = nullptr, *positions = nullptr;
};

struct AttentionShape {
  CacheSide keys, values;
  int64_t heads = 0;  // of queries
  float scale = 0;
  float softcap = 0;              // scores s become softcap * tanh(s / softcap); 0: as they are
  const float* slopes = nullptr;  // [heads] of ALiBi, or none
  bool rotated = true;            // positions rotate queries and keys
  const float* sinks = nullptr;   // [heads] a score of each head that no value goes with, or none
  int64_t group() const { return heads / keys.heads; }
};

class AttentionStep {
 public:
  // One thread prepares.  A key behind its position by d meets the query rotated back by d instead
  // of being rotated itself: nothing stored is written, so shifts add no rounding however many
  // there are.  Raw keys are stored unrotated, and rotated by their deltas when they are read.
  void prepare(const Seen& seen, int64_t tokens, const Rotation& rotation, bool raw, int threads,
               int64_t kv_heads, int64_t group);
  void reserve(const AttentionShape& shape);  // for each layer, after prepare

  // Every thread of the pool runs: queries q [T, heads, keys.dim], rotated, into out [T, heads,
  // values.dim].
  void run(int thread, Pool& pool, const AttentionShape& shape, const float* q, float* out);

 private:
  struct Tile {  // tokens that follow each other and read one list
    int64_t token, tokens;
    const int32_t *cells, *deltas;  // [n]: its columns; deltas, or rows of key_angles_, may be none
    int64_t n, base;                // column 0 is the list's cell `base`
    int64_t part;                   // where its parts begin
    const int32_t* positions;       // [n] of its columns, or none
    int64_t shared;                 // tokens of shared tiles before it, if it is one
    bool even;                      // it and those like it come out even among threads, by heads
    bool keeps;                     // others begin with the same column: its keys are kept
    int64_t cost() const { return tokens * n; }
  };
  struct Scratch {  // one thread's own
    Lines<float> queries, scores, mixed, factors, room;
    Lines<float> highest, totals;  // of many queries, each in sixteen lanes
    std::vector<int64_t> first, end;
    std::vector<Attended> seen;  // of key-value heads
    // The first keys that tiles of one list have in common, transposed: those of a head's columns
    // [0, transposed), column 0 being *cells.
    Lines<float> columns;
    int64_t head = 0, transposed = 0;
    const int32_t* cells = nullptr;
  };
  const int32_t* rows_of(int64_t list);
  bool sunk(int64_t token) const;  // whether it sees first cells apart from the others
  int64_t first(int64_t token) const;
  void add_joined(int64_t token, const int32_t* cells, const int32_t* deltas,
                  const int32_t* positions);
  void add_tile(Tile tile);
  void mark_alike(size_t i);
  void form(Scratch& own, const AttentionShape& s, const Tile& tile, int64_t h0, int64_t h1,
            const float* q) const;
  void score(Scratch& own, const AttentionShape& s, const Attended& seen, bool keeps, int64_t begin,
             int64_t end, float* scores, int64_t stride, Ahead& ahead,
             float* highest = nullptr) const;
  void run_heads(Scratch& own, const AttentionShape& s, const Tile& tile, int64_t h0, int64_t h1,
                 const float* q, float* out) const;
  void finish(const Scratch& own, const AttentionShape& s, const Tile& tile, int64_t h,
              int64_t from, float* out) const;
  void run_many(Scratch& own, const AttentionShape& s, const Tile& tile, int64_t h,
                float* out) const;
  void adjust_block(const Scratch& own, const AttentionShape& s, const Tile& tile, int64_t h,
                    int64_t begin, int64_t end, float* scores, int64_t stride) const;
  void adjust(const AttentionShape& s, const Tile& tile, int64_t token, int64_t head, float* scores,
              int64_t first, int64_t end) const;
  float weigh(const AttentionShape& s, const Tile& tile, int64_t token, int64_t head, float* scores,
              int64_t first, int64_t end) const;
  void share(int threads, int64_t kv_heads);
  void finish_shared(int thread, Pool& pool, const AttentionShape& s, const float* q, float* out);
  const Tile& shared_tile(int64_t token) const;
  int64_t row(const AttentionShape& s, const Tile& tile, int64_t h) const;
  void score_part(Scratch& own, const AttentionShape& s, const Tile& tile, int64_t begin,
                  int64_t end, const float* q);
  void weigh_row(const AttentionShape& s, int64_t row);
  void mix_channels(Scratch& own, const AttentionShape& s, const Tile& tile, int64_t first,
                    int64_t last, const float* q, float* out);

  Seen seen_;
  Rotation rotation_;
  bool raw_ = false;
  std::vector<Tile> tiles_;
  // Those that one thread takes, by heads; and those that threads share, which are so large a part
  // of the work that threads would wait for who has their last head.
  std::vector<const Tile*> whole_, shared_;
  int64_t widest_ = 0;                       // tokens of a whole tile
  int64_t longest_ = 0, shared_tokens_ = 0;  // columns of a shared tile, tokens of all of them
  std::deque<std::vector<int32_t>> joined_;
  std::vector<Attended::Part> parts_;
  std::vector<int32_t> deltas_;  // the distinct ones, 0 first; a part's variant is an index
  std::vector<float> angles_;    // of deltas_
  PositionAngles key_angles_;    // of raw keys
  std::deque<std::vector<int32_t>> key_rows_;  // of listed cells; a list's when it is first met
  int64_t listed_ = -1;                        // the list whose rows are the last ones
  std::vector<Scratch> scratch_;
  Lines<float> scores_, mixed_, factors_;  // of shared tiles
};

}  // namespace aleator
