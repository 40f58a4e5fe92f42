// `gated_delta`: a Gated DeltaNet layer between its products: causal convolution, gates, lengths of q and k, the delta
// rule over the state, gated norm. What it computes is written above gated_delta in graph/ops/gated_delta.py.
//
// One token after the other, whatever the chunks: a prompt in one step, in many, or token by token gives the same bits.
// A piece is one value head of one sequence. Its state stands in one block: the last inputs of its own channels (so
// that heads which share a key head need nothing of each other), then the memory S in stripes of 16 value columns, each
// [key_dim][16]. Columns of S never meet before the norm, so a stripe (8 KiB at key_dim 128) is taken through a tile
// of tokens on its own and stays in L1. Per token a stripe is passed once: with S the memory before the token,
//     a = k S   b = q S   u = sigmoid(beta) (v - d a)   out = d b + (q k) u   S' = d S + k u      d = e^g
// and S' of one token is made while a and b of the next are summed: per 16 values one load, four multiplications and
// one store. That is 4 key_dim value_dim / 16 vector operations per head and token: at 0.8B's sizes 65,000 per layer,
// an eighth of what its products take (21.5 million multiplications, 64 in some 1.6 operations), at 27B's 2 % of them.
#include "../kernel_table.h"
#include "../vec/vec.h"
#include "activations.h"
#include "row_functions.h"

namespace pelton::PELTON_LEVEL {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kTileTokens = 32;  // q, k, v of a tile, 48 KiB at dims of 128, stay in L2
constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kMaxConvKernel = 8;
constexpr float kLengthEpsilon = 1e-6f;

// P0 mixed P1 gate P2 beta P3 alpha P4 conv P5 decay P6 dt_bias P7 norm P8 out; S0 key heads S1 value heads S2 key_dim
// S3 value_dim (both at most kMaxHeadDim) S4 conv kernel (at most kMaxConvKernel) S5 is_tiled S6 has_log_decay S7 mixed
// stride S8 gate stride S9 beta stride S10 alpha stride S11 out stride S12 cache group S13 layer S14 layers of the
// group; V0 eps of the norm. The block to read is entry S13 of the group's table, the one to write entry S14 + S13;
// they may be the same.
struct Layer {
  const Node& node;
  int64_t key_heads, value_heads, key_dim, value_dim, taps;

  explicit Layer(const Node& node_)
      : node(node_),
        key_heads(node.size[0]),
        value_heads(node.size[1]),
        key_dim(node.size[2]),
        value_dim(node.size[3]),
        taps(node.size[4]) {}

  const float* row(int pointer, int64_t index) const {
    return static_cast<const float*>(node.pointer[pointer]) + index * node.size[7 + pointer];
  }
  float* out_row(int64_t index) const { return static_cast<float*>(node.pointer[8]) + index * node.size[11]; }
  const float* vector(int pointer) const { return static_cast<const float*>(node.pointer[pointer]); }

  int64_t key_head(int64_t head) const { return node.size[5] != 0 ? head % key_heads : head * key_heads / value_heads; }
  int64_t conv_columns() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
  int64_t num_stripes() const { return (value_dim + kLanes - 1) / kLanes; }
  int64_t channels() const { return 2 * key_dim + value_dim; }
  int64_t window_floats() const { return ((taps - 1) * channels() + kLanes - 1) / kLanes * kLanes; }
  int64_t head_floats() const { return window_floats() + num_stripes() * key_dim * kLanes; }

  // The head's part of its sequence's state, in the block that is read (0) or written (1).
  float* state(const Step& step, const SequenceRows& sequence, int64_t head, int which) const {
    const int64_t entry = which * node.size[14] + node.size[13];
    uint8_t* block = step.kv_pool + int64_t{sequence.tables[node.size[12]][entry]} * kOffsetUnit;
    return reinterpret_cast<float*>(block) + head * head_floats();
  }
};

// What a tile of tokens needs of one head, in the thread's scratch memory.
struct Tile {
  float* q;  // [kTileTokens][key_dim], each part likewise
  float* k;
  float* v;    // [kTileTokens][value_dim]
  float* out;  // [kTileTokens][num_stripes * 16]
  float* decay;
  float* beta;
  float* product;  // q k

  Tile(const Layer& layer, Scratch& scratch) {
    q = reinterpret_cast<float*>(scratch.data);
    k = q + kTileTokens * layer.key_dim;
    v = k + kTileTokens * layer.key_dim;
    out = v + kTileTokens * layer.value_dim;
    decay = out + kTileTokens * layer.num_stripes() * kLanes;
    beta = decay + kTileTokens;
    product = beta + kTileTokens;
  }
};
static_assert(kTileTokens * (4 * kMaxHeadDim + 3) * sizeof(float) <= kScratchBytes);

// The inputs of a head's channels by position in the step: rows of `mixed`, and before those the state's window.
struct Inputs {
  const Layer& layer;
  const float* window;  // [taps - 1][channels]
  int64_t first_row;

  // `count` channels from `column` of a row on, which are those from `channel` on of the head.
  const float* at(int64_t token, int64_t column, int64_t channel) const {
    return token >= 0 ? layer.row(0, first_row + token) + column
                      : window + (token + layer.taps - 1) * layer.channels() + channel;
  }
};

// silu of the convolution: the taps' products summed from the oldest on. kTaps: how many, 0 if it is not known here.
template <int kTaps>
void convolve_taps(const float* const* sources, const float* weights, int64_t stride, int64_t taps, int64_t count,
                   float* out) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int lanes = lanes_left(count, i);
    F32 sum = f32_zero();
#pragma GCC unroll 8
    for (int64_t tap = 0; tap < (kTaps > 0 ? kTaps : taps); ++tap) {
      const F32 weight = f32_load_partial(weights + tap * stride + i, lanes);
      sum = fma(weight, f32_load_partial(sources[tap] + i, lanes), sum);
    }
    f32_store_partial(out + i, silu(sum), lanes);
  }
}

void convolve(const Inputs& inputs, int64_t token, int64_t column, int64_t channel, int64_t count, float* out) {
  const Layer& layer = inputs.layer;
  const float* sources[kMaxConvKernel];
  for (int64_t tap = 0; tap < layer.taps; ++tap) {
    sources[tap] = inputs.at(token - (layer.taps - 1) + tap, column, channel);
  }
  const auto of_taps = layer.taps == 4 ? convolve_taps<4> : convolve_taps<0>;
  of_taps(sources, layer.vector(4) + column, layer.conv_columns(), layer.taps, count, out);
}

void scale(float* x, int64_t count, float factor) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int lanes = lanes_left(count, i);
    f32_store_partial(x + i, mul(f32_load_partial(x + i, lanes), f32_set(factor)), lanes);
  }
}

float dot(const float* a, const float* b, int64_t count) {
  F32 sum = f32_zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const int lanes = lanes_left(count, i);
    sum = fma(f32_load_partial(a + i, lanes), f32_load_partial(b + i, lanes), sum);
  }
  return f32_reduce_add(sum);
}

// q, k, v of `count` tokens from `first` on.
void fill_heads(const Inputs& inputs, int64_t head, int64_t first, int64_t count, const Tile& tile) {
  const Layer& layer = inputs.layer;
  const int64_t dim = layer.key_dim, keys = layer.key_heads * dim;
  const int64_t query_column = layer.key_head(head) * dim;
  const int64_t value_column = 2 * keys + head * layer.value_dim;
  const float root = __builtin_sqrtf(static_cast<float>(dim));
  for (int64_t t = 0; t < count; ++t) {
    float* q = tile.q + t * dim;
    float* k = tile.k + t * dim;
    convolve(inputs, first + t, query_column, 0, dim, q);
    convolve(inputs, first + t, keys + query_column, dim, dim, k);
    convolve(inputs, first + t, value_column, 2 * dim, layer.value_dim, tile.v + t * layer.value_dim);
    scale(q, dim, 1.0f / (__builtin_sqrtf(sum_of_squares(q, dim) + kLengthEpsilon) * root));
    scale(k, dim, 1.0f / __builtin_sqrtf(sum_of_squares(k, dim) + kLengthEpsilon));
    tile.product[t] = dot(q, k, dim);
  }
}

void fill_gates(const Layer& layer, int64_t head, int64_t first_row, int64_t count, const Tile& tile) {
  for (int64_t t = 0; t < count; ++t) {
    tile.beta[t] = layer.row(2, first_row + t)[head];
    tile.decay[t] = layer.row(3, first_row + t)[head];
  }
  F32 rate = f32_set(layer.vector(5)[head]);  // -rate, if it is not its logarithm
  if (layer.node.size[6] != 0) rate = sub(f32_zero(), f32_exp(rate));
  const F32 bias = f32_set(layer.vector(6)[head]);
  for (int64_t t = 0; t < count; t += kLanes) {
    const int lanes = lanes_left(count, t);
    f32_store_partial(tile.beta + t, sigmoid(f32_load_partial(tile.beta + t, lanes)), lanes);
    const F32 shifted = add(f32_load_partial(tile.decay + t, lanes), bias);
    f32_store_partial(tile.decay + t, f32_exp(mul(rate, softplus(shifted))), lanes);
  }
}

// Stripes that are passed together: their sums are independent chains that hide each other's latency, and they share
// what is broadcast. Per stripe 4 sums, 2 vectors of what is pending and 1 of S; of 32 registers, or of 16 half as
// wide.
constexpr int kStripesAtOnce = PELTON_VEC_FILE(PELTON_LEVEL) == 1 ? 1 : 2;

// What the token before left to be done to some stripes of S: S = decay S + k change.
template <int kStripes>
struct Pending {
  const float* k;
  F32 decay;
  F32 change[kStripes];
};

// k S and q S over some stripes, after what is pending was done to S.
template <int kStripes>
struct Sums {
  F32 keys[kStripes], queries[kStripes];
};

template <int kStripes, bool kHasPending>
PELTON_INLINE void take_row(float* memory, int64_t dim, int64_t row, const float* k, const float* q,
                            const Pending<kStripes>& pending, Sums<kStripes>& sums) {
  const F32 key = f32_set(k[row]), query = f32_set(q[row]);
#pragma GCC unroll 2
  for (int i = 0; i < kStripes; ++i) {
    float* at = memory + (i * dim + row) * kLanes;
    F32 s = f32_load(at);
    if constexpr (kHasPending) {
      s = fma(f32_set(pending.k[row]), pending.change[i], mul(pending.decay, s));
      f32_store(at, s);
    }
    sums.keys[i] = fma(key, s, sums.keys[i]);
    sums.queries[i] = fma(query, s, sums.queries[i]);
  }
}

// Even rows and odd rows are summed apart.
template <int kStripes, bool kHasPending>
PELTON_INLINE Sums<kStripes> pass(float* memory, int64_t dim, const float* k, const float* q,
                                  const Pending<kStripes>& pending_) {
  const Pending<kStripes> pending = pending_;
  Sums<kStripes> even, odd;
#pragma GCC unroll 2
  for (int i = 0; i < kStripes; ++i) even.keys[i] = even.queries[i] = odd.keys[i] = odd.queries[i] = f32_zero();
  int64_t row = 0;
  for (; row + 2 <= dim; row += 2) {
    take_row<kStripes, kHasPending>(memory, dim, row, k, q, pending, even);
    take_row<kStripes, kHasPending>(memory, dim, row + 1, k, q, pending, odd);
  }
  if (row < dim) take_row<kStripes, kHasPending>(memory, dim, row, k, q, pending, even);
#pragma GCC unroll 2
  for (int i = 0; i < kStripes; ++i) {
    even.keys[i] = add(even.keys[i], odd.keys[i]);
    even.queries[i] = add(even.queries[i], odd.queries[i]);
  }
  return even;
}

template <int kStripes>
void finish(float* memory, int64_t dim, const Pending<kStripes>& pending) {
  for (int i = 0; i < kStripes; ++i) {
    for (int64_t row = 0; row < dim; ++row) {
      float* at = memory + (i * dim + row) * kLanes;
      f32_store(at, fma(f32_set(pending.k[row]), pending.change[i], mul(pending.decay, f32_load(at))));
    }
  }
}

// Stripes [first, first + kStripes) through the tile's tokens. memory: that of the head.
template <int kStripes>
void run_stripes(const Layer& layer, const Tile& tile, int64_t first, int64_t count, float* memory) {
  const int64_t dim = layer.key_dim;
  memory += first * dim * kLanes;
  Pending<kStripes> pending{};
  for (int64_t t = 0; t < count; ++t) {
    const float* k = tile.k + t * dim;
    const float* q = tile.q + t * dim;
    const Sums<kStripes> sums =
        t == 0 ? pass<kStripes, false>(memory, dim, k, q, pending) : pass<kStripes, true>(memory, dim, k, q, pending);
    const F32 decay = f32_set(tile.decay[t]);
#pragma GCC unroll 2
    for (int i = 0; i < kStripes; ++i) {
      const int64_t column = (first + i) * kLanes;
      const F32 v = f32_load_partial(tile.v + t * layer.value_dim + column, lanes_left(layer.value_dim, column));
      pending.change[i] = mul(f32_set(tile.beta[t]), sub(v, mul(decay, sums.keys[i])));
      const F32 out = fma(f32_set(tile.product[t]), pending.change[i], mul(decay, sums.queries[i]));
      f32_store(tile.out + t * layer.num_stripes() * kLanes + column, out);
    }
    pending.k = k;
    pending.decay = decay;
  }
  finish(memory, dim, pending);
}

void write_rows(const Layer& layer, const Tile& tile, int64_t head, int64_t first_row, int64_t count) {
  const int64_t dim = layer.value_dim;
  for (int64_t t = 0; t < count; ++t) {
    float* normed = tile.out + t * layer.num_stripes() * kLanes;
    rms_norm_vector(normed, layer.vector(7), dim, layer.node.value[0], normed);
    const float* gate = layer.row(1, first_row + t) + head * dim;
    float* out = layer.out_row(first_row + t) + head * dim;
    for (int64_t i = 0; i < dim; i += kLanes) {
      const int lanes = lanes_left(dim, i);
      const F32 product = mul(f32_load_partial(normed + i, lanes), silu(f32_load_partial(gate + i, lanes)));
      f32_store_partial(out + i, product, lanes);
    }
  }
}

// The last inputs become the window of the next step. A row moves only towards the front, so `to` may be the old one.
void keep_inputs(const Inputs& inputs, int64_t head, int64_t num_rows, float* to) {
  const Layer& layer = inputs.layer;
  const int64_t dim = layer.key_dim, keys = layer.key_heads * dim;
  const int64_t query_column = layer.key_head(head) * dim;
  struct Part {
    int64_t column, channel, count;
  };
  const Part parts[] = {{query_column, 0, dim},
                        {keys + query_column, dim, dim},
                        {2 * keys + head * layer.value_dim, 2 * dim, layer.value_dim}};
  for (int64_t kept = 0; kept < layer.taps - 1; ++kept) {
    const int64_t token = num_rows - (layer.taps - 1) + kept;
    for (const Part& part : parts) {
      const float* from = inputs.at(token, part.column, part.channel);
      __builtin_memmove(to + kept * layer.channels() + part.channel, from,
                        static_cast<size_t>(part.count) * sizeof(float));
    }
  }
}

void run(const Node& node, const Step& step, int64_t piece, Scratch& scratch) {
  const Layer layer(node);
  const SequenceRows& sequence = step.sequences[piece / layer.value_heads];
  const int64_t head = piece % layer.value_heads;
  float* state = layer.state(step, sequence, head, 1);
  const size_t nbytes = static_cast<size_t>(layer.head_floats()) * sizeof(float);
  if (sequence.context == 0) {
    __builtin_memset(state, 0, nbytes);
  } else if (const float* before = layer.state(step, sequence, head, 0); before != state) {
    __builtin_memcpy(state, before, nbytes);
  }
  const Inputs inputs{layer, state, sequence.first_row};
  const Tile tile(layer, scratch);
  float* memory = state + layer.window_floats();
  for (int64_t first = 0; first < sequence.num_rows; first += kTileTokens) {
    const int64_t left = sequence.num_rows - first;
    const int64_t count = left < kTileTokens ? left : kTileTokens;
    fill_heads(inputs, head, first, count, tile);
    fill_gates(layer, head, sequence.first_row + first, count, tile);
    int64_t stripe = 0;
    for (; stripe + kStripesAtOnce <= layer.num_stripes(); stripe += kStripesAtOnce) {
      run_stripes<kStripesAtOnce>(layer, tile, stripe, count, memory);
    }
    if (stripe < layer.num_stripes()) run_stripes<1>(layer, tile, stripe, count, memory);
    write_rows(layer, tile, head, sequence.first_row + first, count);
  }
  keep_inputs(inputs, head, sequence.num_rows, state);
}

int64_t pieces(const Node& node, const Step& step) { return step.num_sequences * node.size[1]; }

constexpr KernelEntry kKernels[] = {{"gated_delta", run, pieces}};

}  // namespace
}  // namespace pelton::PELTON_LEVEL

PELTON_EXPORT_KERNELS(gated_delta, pelton::PELTON_LEVEL::kKernels)
