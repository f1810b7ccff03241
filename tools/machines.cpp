// Small decoders with random weights, from the native code alone: prints a hash of the logits' bits
// for each, which is the same on every machine and instruction set. tools/machines.py builds and
// runs it.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "layers/decoder_step.hpp"
#include "simd/dispatch.hpp"

using namespace aleator;

namespace {

// SplitMix64, and numbers from it by exact operations only.
struct Source {
  uint64_t state;
  uint64_t bits() {
    uint64_t z = state += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  // About normal, standard deviation 1: the sum of eight 16-bit numbers, in steps of 2^-14.
  float number() {
    const uint64_t a = bits(), b = bits();
    int sum = 0;
    for (int i = 0; i < 64; i += 16) sum += int((a >> i & 0xFFFF) + (b >> i & 0xFFFF));
    return float(sum - 8 * 32768 + 4) * 0x1.4p-16f;
  }
};

uint16_t half_of(float x) {  // truncated; x is normal in float16
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const int exponent = int(bits >> 23 & 255) - 127 + 15;
  if (exponent <= 0) return uint16_t(bits >> 16 & 0x8000);
  return uint16_t((bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 0x3FF));
}

struct Matrix {
  std::vector<uint8_t> data;
  std::vector<float> bias;
  Weights weights;
};

// Offsets of a block's float16 numbers, and how large they may be for weights of about `scale`.
struct Halves {
  std::vector<int> at;
  float part;
};
Halves halves_of(Stored type) {
  switch (type) {
    case Stored::q8_0:
      return {{0}, 1.f / 64};
    case Stored::q4_0:
    case Stored::iq4_nl:
      return {{0}, type == Stored::q4_0 ? 1.f / 4 : 1.f / 64};
    case Stored::q4_1:
    case Stored::q5_1:
      return {{0, 2}, 1.f / 8};
    case Stored::q5_0:
      return {{0}, 1.f / 8};
    case Stored::q2_k:
      return {{80, 82}, 1.f / 16};
    case Stored::q3_k:
      return {{108}, 1.f / 64};
    case Stored::q4_k:
    case Stored::q5_k:
      return {{0, 2}, 1.f / 256};
    case Stored::q6_k:
      return {{208}, 1.f / 1024};
    case Stored::iq4_xs:
      return {{0}, 1.f / 1024};
    case Stored::iq2_xxs:
    case Stored::iq2_xs:
    case Stored::iq2_s:
      return {{0}, 1.f / 64};
    case Stored::iq3_xxs:
    case Stored::iq3_s:
      return {{0}, 1.f / 128};
    case Stored::iq1_s:
      return {{0}, 1.f / 8};
    case Stored::tq1_0:
      return {{52}, 1};
    case Stored::tq2_0:
      return {{64}, 1};
    case Stored::mxfp4:  // has exponents
    case Stored::iq1_m:  // has its scale in pieces
      return {{}, 1};
    default:
      return {{}, 1};
  }
}

Matrix matrix(Source& r, Stored type, int64_t out, int64_t in, bool bias = false) {
  const float scale = in >= 512 ? 1.f / 32 : in >= 256 ? 1.f / 16 : 1.f / 4;
  if (block_shape(type).elements > 1 && in % block_shape(type).elements) type = Stored::f32;
  Matrix m;
  const BlockShape shape = block_shape(type);
  const int64_t row = in / shape.elements * shape.bytes;
  m.data.resize(size_t(out * row));
  if (shape.elements > 1) {
    const Halves halves = halves_of(type);
    for (uint8_t& byte : m.data) byte = uint8_t(r.bits() >> 32);
    for (size_t block = 0; block < m.data.size(); block += size_t(shape.bytes))
      for (int at : halves.at) {
        const uint16_t half = half_of(r.number() * scale * halves.part);
        std::memcpy(&m.data[block + size_t(at)], &half, 2);
      }
    if (type == Stored::iq1_m)
      for (size_t block = 0; block < m.data.size(); block += size_t(shape.bytes)) {
        const uint16_t half = half_of(r.number() * scale / 8);
        for (size_t i = 0; i < 4; i++) {  // four bits at the end of each 16-bit number of scales
          uint8_t& byte = m.data[block + 49 + 2 * i];
          byte = uint8_t((byte & 15) | (half >> (4 * i) & 15) << 4);
        }
      }
    if (type == Stored::mxfp4)
      for (size_t block = 0; block < m.data.size(); block += size_t(shape.bytes))
        m.data[block] = uint8_t(119 + m.data[block] % 4);
  } else {
    for (int64_t i = 0; i < out * in; i++) {
      const float x = r.number() * scale;
      uint32_t bits;
      std::memcpy(&bits, &x, 4);
      const uint16_t two = type == Stored::f16 ? half_of(x) : uint16_t(bits >> 16);
      if (type == Stored::f32)
        std::memcpy(&m.data[size_t(i) * 4], &x, 4);
      else
        std::memcpy(&m.data[size_t(i) * 2], &two, 2);
    }
  }
  if (bias)
    for (int64_t i = 0; i < out; i++) m.bias.push_back(r.number() * 0.25f);
  m.weights = {m.data.data(), type, out, in, row, bias ? m.bias.data() : nullptr};
  return m;
}

std::vector<float> numbers(Source& r, int64_t n, float around, float spread) {
  std::vector<float> v;
  for (int64_t i = 0; i < n; i++) v.push_back(around + spread * r.number());
  return v;
}

struct Hash {  // FNV-1a over 64 bits; NaNs count as one
  uint64_t state = 0xCBF29CE484222325;
  void add(const float* x, size_t n) {
    for (size_t i = 0; i < n; i++) {
      uint32_t bits;
      std::memcpy(&bits, &x[i], 4);
      if (x[i] != x[i]) bits = 0x7FC00000;
      for (int k = 0; k < 32; k += 8) state = (state ^ (bits >> k & 255)) * 0x100000001B3;
    }
  }
};

constexpr int64_t vocab = 64, embd = 256, ff = 512, heads = 4, kv_heads = 2, dim = 64, tokens = 41;

// Logits of all tokens in pieces of `most` tokens, on so many threads.
struct Compute {
  int64_t most;
  int threads;
};
const Compute ways[] = {{1, 1}, {tokens, 2}, {7, 3}};

struct Family {
  const char* name;
  Gate gate;
  bool norms, interleaved;
  Stored cache;
};
const Family families[] = {{"llama", Gate::silu, false, true, Stored::f16},
                           {"qwen3", Gate::silu, true, false, Stored::q8_0},
                           {"gemma3", Gate::gelu, true, false, Stored::bf16},
                           {"rounded-gelu", Gate::gelu_rounded, false, false, Stored::q4_0}};

std::vector<float> run_decoder(const Family& family, Stored type, Compute way) {
  Source r{uint64_t(type) * 16 + uint64_t(&family - families)};
  std::vector<double> frequencies;  // powers of 0.75: exact enough anywhere, one product each
  for (int i = 0; i < dim / 2; i++)
    frequencies.push_back(i ? frequencies[size_t(i) - 1] * 0.75 : 1.0);
  std::vector<Matrix> kept;
  kept.reserve(32);
  std::vector<std::vector<float>> vectors;
  vectors.reserve(32);
  const auto weights = [&](int64_t out, int64_t in, bool bias = false) {
    kept.push_back(matrix(r, type, out, in, bias));
    return kept.back().weights;
  };
  const auto vector = [&](int64_t n) {
    vectors.push_back(numbers(r, n, 1, 0.25f));
    return vectors.back().data();
  };
  DecoderShape shape;
  shape.embedding = weights(vocab, embd);
  shape.output = weights(vocab, embd);
  shape.output_norm = vector(embd);
  shape.rotation[0] = {frequencies.data(), dim / 2, 1, family.interleaved};
  shape.eps = 1e-5f;
  shape.attention_scale = 0.125f;
  shape.embedding_scale = family.gate == Gate::gelu ? 16 : 1;
  shape.gate = family.gate;
  DecoderStep step(shape);
  std::vector<std::vector<uint8_t>> cells;
  for (int layer = 0; layer < 2; layer++) {
    DecoderLayer l;
    l.n_heads = heads;
    l.q = weights(heads * dim, embd, layer == 1);
    l.k = weights(kv_heads * dim, embd), l.v = weights(kv_heads * dim, embd, layer == 1);
    l.o = weights(embd, heads * dim);
    l.gate = weights(ff, embd), l.up = weights(ff, embd), l.down = weights(embd, ff);
    l.attention_norm = vector(embd), l.ffn_norm = vector(embd);
    if (family.norms) l.q_norm = vector(dim), l.k_norm = vector(dim);
    if (family.gate == Gate::gelu)
      l.attention_post_norm = vector(embd), l.ffn_post_norm = vector(embd);
    for (CacheSide* side : {&l.keys, &l.values}) {
      *side = {nullptr, family.cache, kv_heads, dim, tokens, false, 0};
      cells.emplace_back(size_t(tokens * kv_heads * side->row_bytes()));
      side->data = cells.back().data();
    }
    step.add_layer(l);
  }
  Pool pool(way.threads);
  std::vector<float> logits(size_t(tokens * vocab));
  std::vector<int32_t> seen;  // cells in the order of positions: position p lies in cell 5p mod 41
  for (int64_t p = 0; p < tokens; p++) seen.push_back(int32_t(5 * p % tokens));
  std::vector<int64_t> ids, at, counts;
  std::vector<int32_t> positions, lists(size_t(tokens), 0);
  for (int64_t p = 0; p < tokens; p++) {
    ids.push_back(int64_t(r.bits() % vocab)), positions.push_back(int32_t(p));
    at.push_back(seen[size_t(p)]), counts.push_back(p + 1);
  }
  for (int64_t begin = 0; begin < tokens; begin += way.most) {
    const int64_t n = std::min(way.most, tokens - begin), all = begin + n;
    std::vector<int64_t> wanted;
    for (int64_t i = 0; i < n; i++) wanted.push_back(i);
    const int64_t starts[2] = {0, all};
    MicroBatch b;
    b.tokens = n, b.ids = &ids[size_t(begin)], b.positions = &positions[size_t(begin)];
    b.groups[0].cells = &at[size_t(begin)], b.groups[0].seen = seen.data();
    b.groups[0].list_start = starts, b.groups[0].n_lists = 1;
    b.groups[0].seen_list = lists.data(), b.groups[0].seen_count = &counts[size_t(begin)];
    b.out_rows = wanted.data(), b.n_out = n, b.logits = &logits[size_t(begin * vocab)];
    step.run(pool, b);
  }
  return logits;
}

std::vector<float> run_mamba(Stored type, Compute way) {
  Source r{1000 + uint64_t(type)};
  constexpr int64_t inner = 512, width = 4, state = 16, rank = 8, rows = 2;
  std::vector<Matrix> kept;
  kept.reserve(32);
  std::vector<std::vector<float>> vectors;
  vectors.reserve(32);
  const auto weights = [&](int64_t out, int64_t in, bool bias = false) {
    kept.push_back(matrix(r, type, out, in, bias));
    return kept.back().weights;
  };
  const auto vector = [&](int64_t n, float around, float spread) {
    vectors.push_back(numbers(r, n, around, spread));
    return vectors.back().data();
  };
  DecoderShape shape;
  shape.embedding = weights(vocab, embd), shape.output = weights(vocab, embd);
  shape.output_norm = vector(embd, 1, 0.25f);
  shape.eps = 1e-5f;
  DecoderStep step(shape);
  for (int layer = 0; layer < 2; layer++) {
    SSMLayer l;
    l.normed = int(type) % 2;
    l.in = weights(2 * inner, embd), l.select = weights(rank + 2 * state, inner);
    l.time_step = weights(inner, rank, true), l.out = weights(embd, inner);
    l.norm = vector(embd, 1, 0.25f);
    float* a = vector(inner * state, 0, 1);
    for (int64_t i = 0; i < inner * state; i++) a[i] = -(a[i] * a[i] + 0.125f);
    float* conv = vector(width * inner, 0, 0.5f);
    float* bias = vector(inner, 0, 0.25f);
    float* d = vector(inner, 1, 0.25f);
    float* conv_rows = vector(rows * inner * (width - 1), 0, 0);
    l.space = {inner,
               state,
               rank,
               {inner, width, conv, bias, conv_rows},
               a,
               d,
               vector(rows * inner * state, 0, 0)};
    step.add_layer({.state = l});
  }
  Pool pool(way.threads);
  std::vector<float> logits(size_t(tokens * vocab));
  std::vector<int64_t> ids;
  for (int64_t p = 0; p < tokens; p++) ids.push_back(int64_t(r.bits() % vocab));
  for (int64_t begin = 0; begin < tokens; begin += way.most) {
    const int64_t n = std::min(way.most, tokens - begin), starts[2] = {0, n},
                  source = begin ? 0 : -1;
    std::vector<int64_t> wanted, stores(size_t(n), -1);
    for (int64_t i = 0; i < n; i++) wanted.push_back(i);
    stores.back() = 0;
    MicroBatch b;
    b.tokens = n, b.ids = &ids[size_t(begin)];
    b.runs = {1, starts, &source, wanted.data(), stores.data()};
    b.out_rows = wanted.data(), b.n_out = n, b.logits = &logits[size_t(begin * vocab)];
    step.run(pool, b);
  }
  return logits;
}

// One line per model: its name, the hash of its logits token by token on one thread, and whether
// other ways of computing them give the same bits.
template <class F>
bool report(const std::string& name, F&& run) {
  const std::vector<float> right = run(ways[0]);
  Hash hash;
  hash.add(right.data(), right.size());
  float most = 0;
  for (float z : right) most = z != z ? z : z > most ? z : most;
  bool equal = true;
  for (const Compute& way : ways) {
    const std::vector<float> other = run(way);
    equal = equal && !std::memcmp(other.data(), right.data(), right.size() * 4);
  }
  std::printf("%s %016llx %s %.9g\n", name.c_str(), static_cast<unsigned long long>(hash.state),
              equal ? "equal" : "DIFFERS", double(most));
  return equal;
}

}  // namespace

int main() {
  std::printf("# %s\n", isa_name(isa()));
  bool equal = true;
  for (int type = 0; type <= int(Stored::tq2_0); type++) {
    const std::string name = block_shapes[type].name;
    const Family& family = families[type % 4];
    equal &= report(std::string(family.name) + "/" + name,
                    [&](Compute way) { return run_decoder(family, Stored(type), way); });
  }
  for (int i = 1; i < 4; i++)  // the first one is among those above
    equal &= report(std::string(families[i].name) + "/F32",
                    [&](Compute way) { return run_decoder(families[i], Stored::f32, way); });
  for (Stored type : {Stored::f32, Stored::f16, Stored::q8_0, Stored::q4_k, Stored::iq4_xs})
    equal &= report(std::string("mamba/") + block_shape(type).name,
                    [&](Compute way) { return run_mamba(type, way); });
  return equal ? 0 : 1;
}
